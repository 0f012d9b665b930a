#!/usr/bin/env python3
"""Measures the latency of /health while many clients are idle or slow. Needs a running server:

    scripts/serve.sh &
    scripts/check_connections.py --port 8080    # with --tls if it has a certificate

2,000 connections send one request and stay idle. 300 send a header at one byte per second. Meanwhile /health is
requested on new connections, one after the other. Prints the median, the 99th percentile and the slowest answer in ms.
The exit code is 1 if the 99th percentile is not below --limit-ms, or if a connection was refused.
"""

import argparse
import resource
import socket
import ssl
import sys
import threading
import time

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n"


def connect(address, tls):
    connection = socket.create_connection(address, timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tls.wrap_socket(connection) if tls else connection


def ask(connection):
    """Requests /health on the connection. Returns whether the answer was 200."""
    connection.sendall(HEALTH + b"\r\n")
    answer = b""
    while b"}" not in answer:
        piece = connection.recv(4096)
        if not piece:
            return False
        answer += piece
    return answer.startswith(b"HTTP/1.1 200")


def drip(connections, stop):
    sent = 0
    text = HEALTH + b"X: " + b"a" * 4000
    while not stop.wait(1):
        for connection in connections:
            try:
                connection.sendall(text[sent:sent + 1])
            except OSError:
                pass  # the server may close a connection that is too slow
        sent += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--idle", type=int, default=2000)
    parser.add_argument("--dripping", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--tls", action="store_true", help="use TLS; the certificate is not verified")
    parser.add_argument("--limit-ms", type=float, default=50)
    arguments = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    address = (arguments.host, arguments.port)
    tls = None
    if arguments.tls:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    idle = [connect(address, tls) for _ in range(arguments.idle)]
    refused = sum(not ask(connection) for connection in idle)
    dripping = [connect(address, tls) for _ in range(arguments.dripping)]
    stop = threading.Event()
    dripper = threading.Thread(target=drip, args=(dripping, stop))
    dripper.start()

    times = []
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        with connect(address, tls) as connection:
            refused += not ask(connection)
        times.append(1000 * (time.monotonic() - begin))
        time.sleep(0.02)
    stop.set()
    dripper.join()
    refused += sum(not ask(connection) for connection in idle)  # idle connections must still work

    times.sort()
    p99 = times[int(0.99 * (len(times) - 1))]
    print(f"{arguments.idle} idle, {arguments.dripping} dripping: /health {len(times)} times, "
          f"median {times[len(times) // 2]:.1f} ms, 99 % {p99:.1f} ms, slowest {times[-1]:.1f} ms; refused {refused}")
    return 1 if p99 >= arguments.limit_ms or refused else 0


if __name__ == "__main__":
    sys.exit(main())
