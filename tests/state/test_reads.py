"""What code reads of names, and what it only counts up or calls."""

import pytest

from calque.state.reads import reads_of


def counting(self, stats):
    self.n += 1
    self.m = self.m + 1
    stats["k"] += len(stats)
    stats["j"] = stats["j"] - 1
    self.inner.tally["q"] += 1 if stats else 2
    self.step()


def variables():
    count = 0

    def inner():
        nonlocal count
        count += 1
        global TOTAL
        TOTAL += 3
        count = count + 1

    return inner


def reading(self, stats, key):
    self.a, self.b = self.c + 1, 1 + self.b
    self.d += self.d
    self.e *= 2
    self.f[key] += 1
    self.g[0] += 1
    self.h = 0
    self.i = 1
    stats.j = self.k = self.k + 1
    self.m = self.other.m + 1
    self.n += 1
    return self.n, stats["o"]


def test_what_is_counted_is_not_read():
    found = reads_of(counting.__code__)
    assert found.values == {"inner", "tally"}
    assert found.called >= {"step", "len"}
    assert reads_of(variables().__code__).values == frozenset()


@pytest.mark.parametrize("name", [*"abcdefghijkmno", "other"])
def test_what_is_used_is_read(name):
    assert name in reads_of(reading.__code__).values


def test_a_dict_is_used_by_items_of_constant_keys_or_otherwise():
    def by_items(self):
        self.a["x"] += 1
        self.b["y"] = self.b["z"]["w"]
        self.c["v"]()
        return self.d.e

    def otherwise(self, key):
        self.a["x"].update(y=1)
        return [self.b[key], *self.c, str(self.d), getattr(self, "e")]  # noqa: B009

    assert reads_of(by_items.__code__).used.isdisjoint("abcyz")
    assert {*"bcde", "x"} <= reads_of(otherwise.__code__).used
    assert "d" not in reads_of(by_items.__code__).passed
    assert {*"bcde"} <= reads_of(otherwise.__code__).passed


def test_items_that_are_counted_up_by_computed_keys_do_not_use_the_container():
    def counts(self, stats, key):
        self.a[key] += 1
        self.b["x"][key] -= len(stats)
        self.c[self.d[key]] += 1
        self.e[key] = self.e.get(key, 0) + 1
        self.g[stats.key] = self.g.get(stats.key, 0) + key
        self.f["y"] = self.f.get("y", 0) + 1

    def uses(self, stats, key):
        self.a[key] += self.a["z"] + self.a[key]
        self.b[key] = self.g.get(key, 0) + 1
        self.c[key] = self.c.get("w", 0) + 1
        self.d[key] *= 2
        self.h[key.a] = self.h.get(key.b, 0) + 1
        self.i[key] = self.i.pop(key, 0) + 1
        self.j[key] = self.j.get(key, 0.5) + 1
        return self.e[key]

    found = reads_of(counts.__code__)
    assert found.used == {"d", "key"}
    assert found.keys == {"x"}
    assert reads_of(uses.__code__).used >= set("abgcdehij")


def test_a_variable_of_which_a_part_is_called_is_read():
    def step(x):
        return scale(x) + registry[kind](x) + models.parts[0](x=x) + losses["a"].f(*x)

    found = reads_of(step.__code__)
    assert found.called - {"f"} == {"scale"}
    assert {"registry", "kind", "models", "parts", "losses"} <= found.values
