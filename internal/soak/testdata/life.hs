-- Lazy structures, exceptions and threads of the runtime.
module Main (main) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.Map.Strict as M
import Data.List (foldl', sort)
import System.Environment
import System.IO

table :: Int -> M.Map String Int
table seed = foldl' (\m i -> M.insertWith (+) (show (i * 7919 `mod` 1009)) (i + seed) m) M.empty [1 .. 3000]

odds :: Int -> IO Int
odds n = when (n `mod` 3 == 0) (throwIO (userError (show n))) >> return n

round' :: Int -> IO Int
round' seed = do
  let m = table seed
  xs <- forM (M.elems m) $ \v -> odds v `catch` \e -> return (length (show (e :: IOException)))
  return (sum xs + length (sort (M.keys m)))

main :: IO ()
main = do
  [n] <- map read <$> getArgs
  hSetBuffering stdout LineBuffering
  forM_ [1 .. n] $ \i -> do
    box <- newEmptyMVar
    _ <- forkIO (round' i >>= putMVar box)
    a <- round' (i + 1)
    b <- takeMVar box
    when (i `mod` 20 == 0) $ putStrLn (show i ++ " " ++ show (a + b))
