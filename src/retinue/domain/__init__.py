"""Pure values and rules: no I/O, no await, nothing below it but `errors`."""
