"""A hub that speaks the Hugging Face Hub's protocol over HTTPS, for tests. Large files are on a second host, as the real
hub's are on its CDN. Faults can be set for the next requests."""
import hashlib
import http.server
import json
import os
import socket
import ssl
import subprocess
import threading
from urllib.parse import unquote, urlsplit


class Repository:
    """files: by path. Those of at least `large` bytes, and all .gguf and .safetensors, are in large-file storage."""

    def __init__(self, files, commit="c" * 40, gated=False, private=False):
        self.files, self.commit, self.gated, self.private = files, commit, gated, private

    def is_large(self, path):
        return path.endswith((".gguf", ".safetensors"))

    def git_hash(self, path):
        data = self.files[path]
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def etag(self, path):
        return hashlib.sha256(self.files[path]).hexdigest() if self.is_large(path) else self.git_hash(path)


class Hub:
    """Serves repositories at self.endpoint. `folder` gets a certificate, self.certificate, which clients must trust."""

    def __init__(self, repositories, folder, token="secret"):
        self.repositories, self.token = repositories, token
        self.lock = threading.Lock()
        self.requests = []  # (method, path, Range or None)
        self.faults = []    # (method, part of a path, function of the handler that answers instead); used once each
        self.authorized_elsewhere = 0  # requests to the second host that carried a token
        self.certificate = os.path.join(folder, "hub.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", self.certificate + ".key",
                        "-out", self.certificate], check=True, capture_output=True)
        self.hub, self.storage = self.listen(HubHandler), self.listen(StorageHandler)
        self.endpoint = f"https://localhost:{self.hub.server_port}"
        self.storage_url = f"https://127.0.0.1:{self.storage.server_port}"

    def listen(self, handler):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads, server.hub = True, self
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.certificate + ".key")
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def fetched(self, part):
        """Returns the requests for bytes of paths that contain `part`."""
        with self.lock:
            return [r for r in self.requests if r[0] == "GET" and part in r[1] and r[1].startswith("/blob/")]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.handle_request()

    def do_GET(self):
        self.handle_request()

    def handle_request(self):
        hub = self.server.hub
        with hub.lock:
            hub.requests.append((self.command, self.path, self.headers.get("Range")))
            fault = next((f for f in hub.faults if f[0] == self.command and f[1] in self.path), None)
            if fault:
                hub.faults.remove(fault)
        if fault:
            return fault[2](self)
        self.answer()

    def send(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def first_byte(self):
        return int(self.headers["Range"].removeprefix("bytes=").split("-")[0]) if "Range" in self.headers else 0

    def send_file(self, data, **headers):
        first = self.first_byte()
        if first:
            headers["Content_Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        self.send(206 if first else 200, data[first:], Accept_Ranges="bytes", **headers)


class HubHandler(Handler):
    def answer(self):
        path = unquote(urlsplit(self.path).path)
        parts = path.strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        if api:
            parts = parts[2:]
        name, repository = "/".join(parts[:2]), self.server.hub.repositories.get("/".join(parts[:2]))
        authorized = self.headers.get("Authorization") == f"Bearer {self.server.hub.token}"
        if repository is None or (repository.private and not authorized):
            return self.send(401, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        if api:
            if len(parts) > 3 and parts[3] not in ("main", repository.commit):
                return self.send(404, b"{}", X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id")
            if len(parts) > 2 and parts[2] == "tree":
                entries = [{"type": "file", "path": f, "size": len(d), "oid": repository.git_hash(f),
                            **({"lfs": {"oid": repository.etag(f), "size": len(d), "pointerSize": 130}}
                               if repository.is_large(f) else {})} for f, d in repository.files.items()]
                return self.send(200, json.dumps(entries).encode(), Content_Type="application/json")
            siblings = [{"rfilename": f, "size": len(d)} for f, d in repository.files.items()]
            body = json.dumps({"id": name, "modelId": name, "sha": repository.commit, "private": repository.private,
                               "gated": repository.gated, "tags": [], "downloads": 0, "siblings": siblings}).encode()
            return self.send(200, body, Content_Type="application/json")
        file = "/".join(parts[4:])
        if repository.gated and not authorized:
            return self.send(403, b"{}", X_Error_Code="GatedRepo", X_Error_Message="Access is restricted")
        if file not in repository.files:
            return self.send(404, b"", X_Error_Code="EntryNotFound", X_Error_Message="Entry not found")
        etag, data = repository.etag(file), repository.files[file]
        if not repository.is_large(file):
            return self.send_file(data, ETag=f'"{etag}"', X_Repo_Commit=repository.commit)
        self.send(302, b"", Location=f"{self.server.hub.storage_url}/blob/{name}/{file}", X_Linked_Etag=f'"{etag}"',
                  X_Linked_Size=str(len(data)), X_Repo_Commit=repository.commit, ETag='"x"')


class StorageHandler(Handler):
    def data(self):
        """Returns the bytes of the file that the path names."""
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        return self.server.hub.repositories["/".join(parts[1:3])].files["/".join(parts[3:])]

    def answer(self):
        if "Authorization" in self.headers:
            self.server.hub.authorized_elsewhere += 1
        data = self.data()
        self.send_file(data, ETag=f'"{hashlib.sha256(data).hexdigest()}"')


def status(code, **headers):
    """Returns a fault that answers with a status."""
    return lambda handler: handler.send(code, b"{}", **headers)


def cut_after(n_bytes):
    """Returns a fault of the second host that ends the connection after some bytes of the file."""

    def answer(handler):
        data, first = handler.data(), handler.first_byte()
        handler.send_response(206 if first else 200)
        handler.send_header("Content-Length", str(len(data) - first))
        handler.end_headers()
        handler.wfile.write(data[first:first + n_bytes])
        handler.wfile.flush()
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)

    return answer


def wrong_bytes(handler):
    """A fault of the second host: bytes that are not those of the file."""
    handler.send_file(bytes(len(handler.data())))


class Proxy:
    """An HTTP proxy that knows CONNECT. Counts connections."""

    def __init__(self):
        self.connections = 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            client, _ = self.socket.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        request = b""
        while b"\r\n\r\n" not in request:
            request += client.recv(4096)
        host, port = request.split()[1].decode().rsplit(":", 1)
        target = socket.create_connection((host, int(port)))
        self.connections += 1
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        threading.Thread(target=self.copy, args=(client, target), daemon=True).start()
        self.copy(target, client)

    @staticmethod
    def copy(source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass
