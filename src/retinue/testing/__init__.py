"""Helpers for the tests of users: fakes, servers and conformance suites."""
