"""Through which names code only appends to lists, and through which it may do more."""

import pytest

from calque.state.growth import growth_of


def growing(self, x, key):
    global LOSSES
    self.a.append(x.sum().detach())
    self.b["k"].append(x)
    self.c[key](x)[key].append(x)
    self.d[key.index + 1]["k"].append(x)
    self.e += [x, *x]
    self.f[key] += [x]
    self.g["k"] += [x]
    self.h.setdefault(key, []).append(x)
    self.i.appendleft(x).extend(x)
    (self.j if x else self.k).extend(x)
    values = self.l
    values.append(x)
    if x:
        values += [x]
    inner = self.m[0]
    inner.append(x)
    LOSSES += [x]
    LOSSES.append(x)
    (
        self.n
        # over several lines
        .append(x)
    )
    self.o[key].append(x)
    self.p[key](x)


def reading(self, x, key):
    self.a += x
    self.b += [x] if x else x
    self.c = self.c + [x]
    self.d[key] = self.d[key] + [x]
    self.e[key] = self.e.get(key, []) + [x]
    (self.f or self.f2)[key].append(x)
    self.g.append(*x)
    append = self.h.append
    append(x)
    values = self.i
    values.append(x)
    print(values)
    self.j.insert(0, x)
    self.k.append(self.k[-1])
    del self.l[0]
    for values_of in self.m:
        values_of.append(x)
    if (found := self.n) is not None:
        found.append(x)
    self.o["k"].append(self.p["k"])
    self.q = x
    x.append(self.r)
    self.s.append
    other = self.t
    (lambda: other)().append(x)
    self.u[0], self.v[key] = x, self.w.append
    return self.y, not self.z


@pytest.mark.parametrize("name", [*"abdefghiklmno", "LOSSES"])
def test_what_is_appended_to(name):
    assert name not in growth_of(growing.__code__).others
    assert name in {name for name, _ in growth_of(growing.__code__).ways}


@pytest.mark.parametrize("name", [*"abcdefghijklmnpqrstuvwyz", "f2"])
def test_what_is_used_otherwise(name):
    assert name in growth_of(reading.__code__).others


def test_to_what_items_are_appended():
    ways = growth_of(growing.__code__).ways
    depths = {name: {depth for _, depth in (w for n, w in ways if n == name)} for name in "abdfhmo"}
    assert depths == {"a": {0}, "b": {1}, "d": {2}, "f": {1}, "h": {1}, "m": {1}, "o": {1}}
    assert {method for name, (method, _) in ways if name == "l"} == {"append", "+="}
    assert {method for name, (method, _) in ways if name == "i"} == {"appendleft"}


def test_items_with_constant_keys():
    def by_items(self):
        self.a["x"].append(self.a["y"])
        self.b["x"] = self.b["y"]
        self.c["x"].append(len(self.c))

    found = growth_of(by_items.__code__)
    assert {"a", "b", "c"} <= found.others
    assert found.mixed.isdisjoint(("a", "b")) and "c" in found.mixed
    assert "y" in found.others


def test_local_variables_count_as_read_where_code_sees_them_all():
    def seeing(self, x):
        values = self.a
        values.append(x)
        return eval("values")

    assert "a" in growth_of(seeing.__code__).others
