"""SmartKV on Ray Serve: each replica runs `smartkv serve` as a process of its own and forwards requests to it.

    pip install -r requirements.txt
    serve run smartkv_app:build model=/models/model.gguf
    serve deploy serve.yaml                                # on a running cluster

Ray does the work of the cluster. Its proxies accept the requests. Its ConsistentHashRouter sends requests of a session
(header x-session-id) to the replica that has computed the session's prompts, and spreads requests without a session
evenly. Its controller counts requests, adds and removes replicas, and replaces a replica that died.
"""
import os
import re
import signal
import subprocess
import threading

import aiohttp
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

# Header fields that belong to one connection and not to the message (RFC 9110, section 7.6.1).
HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
METHODS = ["GET", "HEAD", "POST", "OPTIONS"]

app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)  # every path is forwarded to the server


class Arguments(BaseModel):
    """Arguments of the application: `args` in serve.yaml, NAME=VALUE for `serve run`."""
    model_config = ConfigDict(extra="forbid")
    model: str
    program: str = "smartkv"
    options: list[str] = []          # more options of `smartkv serve`
    cpus: int = 4                    # per replica
    max_sequences: int = 32          # sequences that a replica runs side by side
    min_replicas: int = 1
    max_replicas: int = 1
    upscale_delay_s: float = 30
    downscale_delay_s: float = 600   # long, because a removed replica loses its computed prompts


@serve.deployment
@serve.ingress(app)
class SmartKV:
    def __init__(self, arguments: Arguments):
        self._stopping = False
        self._session = None
        self._replica = serve.get_replica_context().replica_id.unique_id
        # setpriv ends the server with this process, however that ends.
        self._server = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", arguments.program, "serve", "--model", arguments.model, "--port", "0",
             "--threads", str(arguments.cpus), "--max-sequences", str(arguments.max_sequences), *arguments.options],
            stdout=subprocess.PIPE, text=True)
        line = self._server.stdout.readline()
        address = re.search(r" at (http://\S+)/v1$", line)
        if address is None:
            raise RuntimeError(f"smartkv serve ended with exit code {self._server.wait()}: see this replica's log")
        self._url = address.group(1)
        threading.Thread(target=self._end_with_server, daemon=True).start()

    def _end_with_server(self):
        self._server.wait()
        if not self._stopping:
            os._exit(1)  # the routers learn of it at once, sooner than by a health check

    async def check_health(self):
        async with self._client().get(self._url + "/health/live") as answer:
            answer.raise_for_status()

    def __del__(self):
        if server := getattr(self, "_server", None):
            self._stopping = True
            server.send_signal(signal.SIGTERM)  # lets running requests finish
            server.wait()

    def _client(self):
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None),
                                                  connector=aiohttp.TCPConnector(limit=0))
        return self._session

    @app.api_route("/{path:path}", methods=METHODS)
    async def forward(self, request: Request) -> Response:
        url = self._url + request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = [(name, value) for name, value in request.headers.items() if name not in HOP_BY_HOP | {"content-length"}]
        answer = await self._client().request(request.method, url, headers=headers, data=await request.body() or None,
                                              allow_redirects=False)
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
        return StreamingResponse(self._body(answer), answer.status, {**kept, "x-smartkv-replica": self._replica})

    @staticmethod
    async def _body(answer):
        try:
            async for data in answer.content.iter_any():
                yield data
        finally:
            answer.close()  # if the client left, the server cancels its request


def build(arguments: Arguments) -> serve.Application:
    return SmartKV.options(
        ray_actor_options={"num_cpus": arguments.cpus},
        # With a larger number, requests would wait in one replica's queue while another has room.
        max_ongoing_requests=arguments.max_sequences,
        autoscaling_config=AutoscalingConfig(
            min_replicas=arguments.min_replicas, max_replicas=arguments.max_replicas,
            # Replicas are half full. The other half is for requests that arrive while a new replica loads its model.
            target_ongoing_requests=max(1, arguments.max_sequences // 2),
            upscale_delay_s=arguments.upscale_delay_s, downscale_delay_s=arguments.downscale_delay_s),
        graceful_shutdown_timeout_s=120,  # compare terminationGracePeriodSeconds in deploy/kubernetes
        request_router_config=RequestRouterConfig(
            request_router_class="ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"),
    ).bind(arguments)
