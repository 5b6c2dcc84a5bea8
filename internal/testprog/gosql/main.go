// Command gosql asks a database that answers everything, over package database/sql, and makes connections.
//
//	gosql ROUNDS    makes so many rounds, prints its counts and ends
//
// A round has a query, a statement that fails, one that is prepared and executed, and a transaction that is committed and one that is rolled back, each with a query; a name that is looked up;
// and a connection to a listener of its own. The text of a query is "QUERY n", with the round's number.
package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

var errFailed = errors.New("the statement fails")

// base is a driver, a connection, a statement, a transaction and rows: all of them do nothing.
type base struct{}

func (base) Open(string) (driver.Conn, error)           { return base{}, nil }
func (base) Begin() (driver.Tx, error)                  { return base{}, nil }
func (base) Prepare(string) (driver.Stmt, error)        { return base{}, nil }
func (base) Exec([]driver.Value) (driver.Result, error) { return driver.RowsAffected(1), nil }
func (base) Query([]driver.Value) (driver.Rows, error)  { return base{}, nil }
func (base) NumInput() int                              { return 0 }
func (base) Commit() error                              { return nil }
func (base) Rollback() error                            { return nil }
func (base) Columns() []string                          { return nil }
func (base) Next([]driver.Value) error                  { return io.EOF }
func (base) Close() error                               { return nil }

// ExecContext fails what is not prepared.
func (base) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return nil, errFailed
}

var counts = map[string]uint64{}

// did counts a call, and ends the program if it has not done what it should.
func did(what string, err, want error) {
	if !errors.Is(err, want) {
		fmt.Fprintln(os.Stderr, what, err)
		os.Exit(1)
	}
	if counts[what]++; want != nil {
		counts[what+"_failed"]++
	}
}

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func query(what string, q querier, n int) {
	rows, err := q.QueryContext(context.Background(), fmt.Sprint("QUERY ", n))
	did(what, err, nil)
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		did("rows", err, nil)
	}
}

func round(db *sql.DB, l net.Listener, n int) {
	ctx := context.Background()
	query("DB.QueryContext", db, n)
	_, err := db.ExecContext(ctx, fmt.Sprint("EXEC ", n))
	did("DB.ExecContext", err, errFailed)
	stmt, err := db.PrepareContext(ctx, fmt.Sprint("PREPARED ", n))
	did("DB.PrepareContext", err, nil)
	_, err = stmt.ExecContext(ctx)
	did("Stmt.ExecContext", err, nil)
	if err := stmt.Close(); err != nil {
		did("close", err, nil)
	}
	for _, commit := range []bool{true, false} {
		tx, err := db.BeginTx(ctx, nil)
		did("DB.BeginTx", err, nil)
		query("Tx.QueryContext", tx, n)
		if commit {
			did("Tx.Commit", tx.Commit(), nil)
		} else {
			did("Tx.Rollback", tx.Rollback(), nil)
		}
	}
	_, err = net.DefaultResolver.LookupIPAddr(ctx, "127.0.0.1")
	did("Resolver.lookupIPAddr", err, nil)
	c, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	did("Dialer.DialContext", err, nil)
	if err := c.Close(); err != nil {
		did("close", err, nil)
	}
}

func main() {
	sql.Register("base", base{})
	db, err := sql.Open("base", "")
	var l net.Listener
	if err == nil {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	rounds := 0
	if err == nil {
		_, err = fmt.Sscan(os.Args[1], &rounds)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for n := range rounds {
		round(db, l, n)
	}
	_ = json.NewEncoder(os.Stdout).Encode(counts)
}
