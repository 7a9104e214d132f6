"""What the ladders have in common: steps by name, and what a step expects."""
MIB = 1 << 20


class Steps(dict):
    """The functions of a ladder, by name and in order; each says what was seen, or raises."""

    def step(self, function):
        self[function.__name__] = function
        return function


def expect(name, seen, wanted):
    assert seen == wanted, f"{name} is {seen}, expected {wanted}"
