// Command redisload is a client of a Redis server.
//
//	redisload SOCKET ROUNDS CLIENTS    each client makes so many rounds, by Round: SET, two GET, of which one finds no key, INCR, a pipeline of three commands
//	                                   and a transaction of two
//
// At the end it prints what it has counted: rounds, and the commands that have failed in another way than by a missing key.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

var rounds, missing, failed atomic.Uint64

// Round makes the commands of a round.
//
//go:noinline
func Round(c *redis.Client, n int) {
	rounds.Add(1)
	ctx := context.Background()
	key := fmt.Sprint("key", n)
	_, pipelined := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Set(ctx, key+"p", n, 0)
		p.Get(ctx, key+"p")
		return p.Del(ctx, key+"p").Err()
	})
	_, together := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Incr(ctx, "transactions")
		return p.Incr(ctx, "transactions").Err()
	})
	for _, err := range []error{c.Set(ctx, key, n, 0).Err(), c.Get(ctx, key).Err(), c.Get(ctx, "no such key").Err(), c.Incr(ctx, "rounds").Err(), pipelined, together} {
		switch {
		case errors.Is(err, redis.Nil):
			missing.Add(1)
		case err != nil:
			failed.Add(1)
		}
	}
}

func run(socket string, n, clients int) error {
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: socket, PoolSize: clients})
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for k := range n {
				Round(c, i*n+k)
			}
		})
	}
	all.Wait()
	return c.Close()
}

func main() {
	var n, clients int
	_, err := fmt.Sscan(os.Args[2]+" "+os.Args[3], &n, &clients)
	if err == nil {
		err = run(os.Args[1], n, clients)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]uint64{"rounds": rounds.Load(), "missing": missing.Load(), "failed": failed.Load()})
}
