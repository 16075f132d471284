"""Fixtures for all tests."""

import functools
import os
import signal
import sys
import urllib.request

import pytest

from tests.distributed.pool import Pool

# Before torch is imported, and for the processes that tests start.
os.environ |= {
    # A second thread only waits, at full speed, for the first: these models are too small to share.
    "OMP_NUM_THREADS": "1",
    # No helpers that compile beside the one process that does.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    # The instructions that the processor lists work: otherwise torch compiles a program to try each, for half a minute.
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
}

# A shell that starts the tests in the background lets them ignore Ctrl-C, and what they start inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_process_group_is_left():
    """What a command connected in this process, and an error kept it from ending, ends with its test."""
    yield
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.fixture(scope="session")
def run_on():
    """`run_on(ranks, function, *args)`: what a top-level function gives on each rank; see tests.distributed.pool."""
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def ranks2(run_on):
    """`ranks2(function, *args)`: on two ranks."""
    return functools.partial(run_on, 2)


@pytest.fixture
def endpoint(monkeypatch):
    """The address of an S3 server that holds nothing; credentials are found by s3fs where it always looks."""
    moto_server = pytest.importorskip("moto.server")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    # What it holds outlives a server within a process.
    urllib.request.urlopen(urllib.request.Request(f"{address}/moto-api/reset", method="POST")).close()
    yield address
    server.stop()
