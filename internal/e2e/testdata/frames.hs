import qualified Data.Map as M
import Control.Exception
fib :: Int -> Int
fib n = if n < 2 then n else fib (n-1) + fib (n-2)
main :: IO ()
main = do
  let m = M.fromList [ (i*7919 `mod` 10007, show i) | i <- [1..20000::Int] ]
  print (sum (map length (M.elems m)))
  print (fib 22)
  r <- try (evaluate (1 `div` (0::Int))) :: IO (Either ArithException Int)
  print r
