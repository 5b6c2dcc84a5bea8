// tls has a client and a server of TLS speak with each other, in memory.
//
//	tls N    makes N connections, prints its counts and ends: of each function the calls, and those that have failed (NAME_failed)
//
// A connection has a handshake, a message from the client and one from the server, by SSL_write and SSL_read or by SSL_write_ex and SSL_read_ex,
// a read of each for which nothing is there, and a shutdown. Both sides know a key, so that no certificate is needed.
#include "prog.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

enum { CONNECT, ACCEPT, READ, READ_EX, WRITE, WRITE_EX, SHUTDOWN, KINDS };

static const char *const names[KINDS] = {"SSL_connect", "SSL_accept", "SSL_read", "SSL_read_ex", "SSL_write", "SSL_write_ex", "SSL_shutdown"};
static unsigned calls[KINDS], failures[KINDS];

// did counts a call, and gives its result.
static int did(int kind, int result) {
	calls[kind]++;
	failures[kind] += kind == SHUTDOWN ? result < 0 : result <= 0;
	return result;
}

static const unsigned char key[16] = "a key of 16 byte";

static unsigned client_key(SSL *s, const char *hint, char *identity, unsigned room, unsigned char *psk, unsigned most) {
	(void)s, (void)hint;
	if (room < 3 || most < sizeof key)
		return 0;
	strcpy(identity, "me");
	memcpy(psk, key, sizeof key);
	return sizeof key;
}

static unsigned server_key(SSL *s, const char *identity, unsigned char *psk, unsigned most) {
	(void)s;
	if (strcmp(identity, "me") != 0 || most < sizeof key)
		return 0;
	memcpy(psk, key, sizeof key);
	return sizeof key;
}

static void fail(const char *what) {
	fprintf(stderr, "%s: ", what);
	ERR_print_errors_fp(stderr);
	exit(3);
}

// half is one side of a connection.
static SSL *half(SSL_CTX *c, BIO *b) {
	SSL *s = SSL_new(c);
	if (!s)
		fail("SSL_new");
	SSL_set_bio(s, b, b);
	return s;
}

// pass sends a message from one side to the other, which has no more to read then.
static void pass(SSL *from, SSL *to, int ex) {
	char b[64] = "eight by";
	size_t n = 0;
	if (ex) {
		if (!did(WRITE_EX, SSL_write_ex(from, b, 8, &n)) || n != 8 || !did(READ_EX, SSL_read_ex(to, b, sizeof b, &n)) || n != 8)
			fail("SSL_write_ex");
		did(READ_EX, SSL_read_ex(to, b, sizeof b, &n));
		return;
	}
	if (did(WRITE, SSL_write(from, b, 8)) != 8 || did(READ, SSL_read(to, b, sizeof b)) != 8)
		fail("SSL_write");
	did(READ, SSL_read(to, b, sizeof b));
}

static void once(SSL_CTX *clients, SSL_CTX *servers, int ex) {
	BIO *here, *there;
	if (!BIO_new_bio_pair(&here, 0, &there, 0))
		fail("BIO_new_bio_pair");
	SSL *c = half(clients, here), *s = half(servers, there);
	int connected = 0, accepted = 0;
	for (int i = 0; i < 16 && !(connected && accepted); i++) {
		if (!connected)
			connected = did(CONNECT, SSL_connect(c)) == 1;
		if (!accepted)
			accepted = did(ACCEPT, SSL_accept(s)) == 1;
	}
	if (!connected || !accepted)
		fail("handshake");
	pass(c, s, ex);
	pass(s, c, ex);
	did(SHUTDOWN, SSL_shutdown(c));
	did(SHUTDOWN, SSL_shutdown(s));
	SSL_free(c);
	SSL_free(s);
}

int main(int argc, char **argv) {
	SSL_CTX *clients = SSL_CTX_new(TLS_client_method()), *servers = SSL_CTX_new(TLS_server_method());
	if (!clients || !servers || !SSL_CTX_set_max_proto_version(clients, TLS1_2_VERSION) || !SSL_CTX_set_cipher_list(clients, "PSK-AES128-GCM-SHA256") ||
		!SSL_CTX_set_cipher_list(servers, "PSK-AES128-GCM-SHA256"))
		fail("SSL_CTX_new");
	SSL_CTX_set_psk_client_callback(clients, client_key);
	SSL_CTX_set_psk_server_callback(servers, server_key);
	for (unsigned long n = argc > 1 ? strtoul(argv[1], NULL, 0) : 1; n > 0; n--)
		once(clients, servers, n & 1);
	SSL_CTX_free(clients);
	SSL_CTX_free(servers);
	printf("{");
	for (int i = 0; i < KINDS; i++)
		printf("%s\"%s\":%u,\"%s_failed\":%u", i ? "," : "", names[i], calls[i], names[i], failures[i]);
	say("}");
	return 0;
}
