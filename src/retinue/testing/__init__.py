"""What we ship for other people's tests: fakes, servers and conformance suites."""
