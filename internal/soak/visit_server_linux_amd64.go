package soak

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// postgresProgram finds one of PostgreSQL's programs, in the newest version that is there.
func postgresProgram(name string) (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("no %s in /usr/lib/postgresql: install Debian's package postgresql", name)
	}
	return found[len(found)-1], nil
}

// preparePostgres makes a database of its own, which user postgres owns: the server does not run as root.
func preparePostgres(dir string, size int) (*Command, error) {
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	c := &Command{Dir: dir, UID: uint32(uid), GID: uint32(gid), Size: size}
	server, err3 := postgresProgram("postgres")
	initdb, err4 := postgresProgram("initdb")
	if err := errors.Join(err1, err2, err3, err4, os.Chown(dir, int(uid), int(gid))); err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	cmd := c.command(initdb, "-D", data, "-A", "trust", "-U", "postgres", "--no-sync", "--locale=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	c.Args = []string{server, "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "autovacuum_naptime=1s", "-c", "max_connections=20"}
	return c, nil
}

// command makes a command that runs in the program's directory as its user.
func (c *Command) command(args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = c.Dir
	if c.UID != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.UID, Gid: c.GID}}
	}
	return cmd
}

// servePostgres has pgbench change a database, and asks whether all changes are in it.
func servePostgres(c *Command) (string, error) {
	const clients, transactions = 4, 2000
	pgbench, err1 := postgresProgram("pgbench")
	psql, err2 := postgresProgram("psql")
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	to := []string{"-h", c.Dir, "-U", "postgres"}
	ask := append([]string{psql}, append(to, "-XAtc")...)
	if err := eventually(func() error { return c.command(append(ask, "select 1", "postgres")...).Run() }); err != nil {
		return "", fmt.Errorf("postgres does not answer: %w", err)
	}
	for _, args := range [][]string{{"-i", "-q", "-s", "1"}, {"-n", "-c", fmt.Sprint(clients), "-j", "2", "-t", fmt.Sprint(transactions * c.Size)}} {
		cmd := c.command(append(append([]string{pgbench}, to...), append(args, "postgres")...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("pgbench: %w\n%s", err, out)
		}
	}
	const sums = "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)," +
		" (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history), (select count(*) from pgbench_history)"
	out, err := c.command(append(ask, sums, "postgres")...).CombinedOutput()
	return string(out), err
}

// eventually asks again until there is no error, for a minute at most.
func eventually(ask func() error) error {
	end := time.Now().Add(time.Minute)
	for {
		err := ask()
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func stopPostgres(_ *Command, pid int) error { return syscall.Kill(pid, syscall.SIGINT) }

const nginxConf = `daemon off;
worker_processes 2;
user root;
pid %[1]s/pid;
error_log stderr notice;
events { worker_connections 64; }
http {
	access_log %[1]s/access;
	client_body_temp_path %[1]s/tmp; proxy_temp_path %[1]s/tmp; fastcgi_temp_path %[1]s/tmp;
	uwsgi_temp_path %[1]s/tmp; scgi_temp_path %[1]s/tmp;
	gzip on; gzip_types *;
	server { listen 127.0.0.1:%[2]d; root %[1]s/www; location /again { rewrite ^/again(.*) $1 last; } }
}
`

func prepareNginx(dir string, size int) (*Command, error) {
	server, err := program("nginx")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	conf := filepath.Join(dir, "conf")
	err = errors.Join(l.Close(), os.Mkdir(filepath.Join(dir, "www"), 0o755),
		os.WriteFile(conf, fmt.Appendf(nil, nginxConf, dir, port), 0o644),
		os.WriteFile(filepath.Join(dir, "www", "small"), text(500), 0o644),
		os.WriteFile(filepath.Join(dir, "www", "large"), text(200_000), 0o644))
	return &Command{Args: []string{server, "-c", conf, "-p", dir, "-e", "stderr"}, Dir: dir, Port: port, Size: size}, err
}

// serveNginx has eight clients fetch files, packed or not, and some that are not there.
func serveNginx(c *Command) (string, error) {
	base := fmt.Sprintf("http://127.0.0.1:%d", c.Port)
	if err := eventually(func() error { _, err := fetchFile(base+"/small", false); return err }); err != nil {
		return "", err
	}
	const clients, rounds = 8, 400
	said := make([]string, clients)
	errs := make([]error, clients)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			all := sha256.New()
			for n := range rounds * c.Size {
				got, err := fetchFile(base+[]string{"/small", "/large", "/none", "/again/small"}[n%4], (n+i)%3 == 0)
				if err != nil {
					errs[i] = err
					return
				}
				fmt.Fprintln(all, got)
			}
			said[i] = fmt.Sprintf("%x", all.Sum(nil))
		})
	}
	wg.Wait()
	return strings.Join(said, "\n"), errors.Join(errs...)
}

// fetchFile gets a page, on a connection of its own or on one that stays, and says what it was.
func fetchFile(url string, fresh bool) (string, error) {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	req.Close = fresh
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := io.Copy(&body, resp.Body); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d %x", resp.StatusCode, sha256.Sum256(body.Bytes())), nil
}

func stopNginx(_ *Command, pid int) error { return syscall.Kill(pid, syscall.SIGQUIT) }
