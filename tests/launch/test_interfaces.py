"""The network interface and the address of the head node (field report 91)."""

import os
import socket
from types import SimpleNamespace

import psutil
import pytest

from launch import interfaces
from launch.launchers import Launch
from launch.rendezvous import choose_interface, connect_seconds
from megaxf.config_errors import ConfigError

INTERFACES = {"lo": ["127.0.0.1"], "eth0": ["10.1.0.5"], "ib0": ["10.2.0.5"]}


@pytest.fixture
def host(monkeypatch):
    """`host(name's address, interfaces)`: a host of that kind."""

    def make(resolved, found):
        entries = {
            name: [SimpleNamespace(family=socket.AF_INET, address=address) for address in listed]
            for name, listed in found.items()
        }
        monkeypatch.setattr(psutil, "net_if_addrs", lambda: entries)
        monkeypatch.setattr(socket, "gethostname", lambda: "head")

        def resolve(name):
            if resolved is None:
                raise socket.gaierror(-2, "Name or service not known")
            return resolved

        monkeypatch.setattr(socket, "gethostbyname", resolve)

    return make


def test_the_address_that_others_reach(host):
    host("10.1.0.9", INTERFACES)
    assert interfaces.own_address(None) == "10.1.0.9"
    assert interfaces.own_address("ib0") == "10.2.0.5"
    for unusable in ("127.0.1.1", None):
        host(unusable, {name: INTERFACES[name] for name in ("lo", "eth0")})
        assert interfaces.own_address(None) == "10.1.0.5"
        host(unusable, INTERFACES)
        assert interfaces.own_address("eth0") == "10.1.0.5"
        with pytest.raises(ConfigError) as caught:
            interfaces.own_address(None)
        assert f"of this host, head, leads to {unusable or 'no address'}" in str(caught.value)
        assert "lo (127.0.0.1), eth0 (10.1.0.5), ib0 (10.2.0.5) name one in MEGAXF_INTERFACE" in str(caught.value)


def test_no_program_named_hostname_is_asked(tmp_path, monkeypatch):
    (tmp_path / "hostname").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "hostname").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interfaces.own_address("lo").startswith(("127.", "::1"))


def test_the_interface_towards_the_head_node():
    assert interfaces.towards("127.0.0.1") == "lo"
    assert interfaces.towards("no-such.invalid") is None


@pytest.mark.parametrize(
    ("world_size", "given", "expected"),
    [
        (2, {}, (None, None)),
        (4, {}, ("lo", None)),
        (4, {"GLOO_SOCKET_IFNAME": "mine"}, ("mine", None)),
        (2, {"MEGAXF_INTERFACE": "lo"}, ("lo", "=lo")),
        (2, {"MEGAXF_INTERFACE": "lo", "NCCL_SOCKET_IFNAME": "ib"}, ("lo", "ib")),
    ],
)
def test_what_gloo_and_nccl_are_told(monkeypatch, world_size, given, expected):
    """One host has 2 ranks; what the user has set for a library stays."""
    monkeypatch.setattr(os, "environ", dict(given))
    choose_interface(Launch(1, world_size, 1, 2, "srun", "127.0.0.1"))
    assert (os.environ.get("GLOO_SOCKET_IFNAME"), os.environ.get("NCCL_SOCKET_IFNAME")) == expected


def test_settings_that_cannot_be(monkeypatch):
    monkeypatch.setenv("MEGAXF_INTERFACE", "eth99")
    with pytest.raises(ConfigError, match=r"MEGAXF_INTERFACE = eth99 is no network interface of .*; it has lo \("):
        choose_interface(Launch(1, 2, 1, 2, "srun", "127.0.0.1"))
    for text in ("soon", "-1", "nan", "inf"):
        monkeypatch.setenv("MEGAXF_CONNECT_SECONDS", text)
        with pytest.raises(ConfigError, match="is not a number of seconds above 0"):
            connect_seconds()
    monkeypatch.setenv("MEGAXF_CONNECT_SECONDS", "7.5")
    assert connect_seconds() == 7.5
