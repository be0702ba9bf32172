"""The cache of the compiled kernel: damage, other users, other compilers, no compiler, and no place to write."""

import ctypes
import hashlib
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tether import native
from tether.native import build

pytestmark = pytest.mark.skipif(shutil.which("cc") is None or os.name != "posix", reason="no C compiler")
ROOT = getattr(os, "geteuid", lambda: 1)() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="only root can give files away")
needs_user = pytest.mark.skipif(ROOT, reason="root may write everywhere")
CHILD = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("build", sys.argv[1])
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
build.FOLDER, build.SOURCES = pathlib.Path(sys.argv[2]), ("native.c",)
print(build.kernel().library.answer())
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A kernel that compiles at once, and a cache of its own."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "native.c").write_text("// α\nint answer(void) { return 42; }\n", encoding="utf-8")
    monkeypatch.setattr(build, "FOLDER", source)
    monkeypatch.setattr(build, "SOURCES", ("native.c",))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("CC", "TETHER_CFLAGS", "TETHER_NATIVE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def compiler(folder, before="", after=""):
    """A compiler that counts its calls, with lines of shell before the real one runs."""
    script, log = folder / "mycc", folder / "calls"
    script.write_text(
        f'#!/bin/sh\necho "$@" >> {log}\n{before}\ncc "$@"\ncode=$?\n{after}\nexit $code\n', encoding="utf-8"
    )
    script.chmod(0o755)
    return str(script), lambda: len(log.read_text(encoding="utf-8").splitlines()) if log.exists() else 0


def libraries(folder):
    return sorted((folder / "cache" / "tether" / "kernels").glob("*.so"))


def works(built):
    return built.library.answer() == 42


def test_it_is_compiled_once_and_named_by_its_content(small, monkeypatch):
    script, calls = compiler(small)
    monkeypatch.setenv("CC", script)
    assert works(build.kernel())
    assert works(build.kernel())
    assert calls() == 1
    (path,) = libraries(small)
    assert path.stem.endswith(hashlib.sha256(path.read_bytes()).hexdigest()[:32])
    assert build.kernel().path == str(path)
    assert [x.name for x in path.parent.iterdir()] == [path.name]  # nothing left over


@pytest.mark.parametrize("damage", ["cut", "emptied", "a byte changed", "a page changed", "text"])
def test_a_damaged_library_is_never_loaded(small, monkeypatch, damage):
    script, calls = compiler(small)
    monkeypatch.setenv("CC", script)
    build.kernel()
    (path,) = libraries(small)
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.unlink()  # a file that is in use must not change under its readers
    path.write_bytes(
        {
            "cut": whole[: middle // 4096 * 4096],
            "emptied": b"",
            "a byte changed": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "a page changed": whole[:4096] + b"\xff" * 4096 + whole[8192:],
            "text": b"no library",
        }[damage]
    )
    path.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, build.__file__, str(build.FOLDER)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "42"), done.stderr
    assert calls() == 2
    assert libraries(small) == [path]
    assert hashlib.sha256(path.read_bytes()).hexdigest()[:32] in path.stem


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_folder_and_library_are_private_under_every_umask(small, umask):
    before = os.umask(umask)
    try:
        build.kernel()
    finally:
        os.umask(before)
    (path,) = libraries(small)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def planted(small, monkeypatch):
    """A library of somebody else's making, under the very name that is looked for."""
    build.kernel()
    (path,) = libraries(small)
    stem = path.stem.rpartition("-")[0]
    path.unlink()
    evil = small / "evil.c"
    evil.write_text("int answer(void) { return 666; }", encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", str(evil), "-o", str(small / "evil.so")], check=True)
    digest = hashlib.sha256((small / "evil.so").read_bytes()).hexdigest()[:32]
    place = path.with_name(f"{stem}-{digest}.so")
    shutil.copy(small / "evil.so", place)
    place.chmod(0o700)
    assert build.kernel().library.answer() == 666  # of this user, private and whole: it is taken for ours
    return place


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_library_that_others_may_write_to_is_not_loaded(small, monkeypatch, mode):
    place = planted(small, monkeypatch)
    place.chmod(mode)
    assert works(build.kernel())


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_not_used(small, monkeypatch, mode):
    place = planted(small, monkeypatch)
    place.parent.chmod(mode)
    built = build.kernel()
    assert works(built)
    assert "others may write to it" in built.path
    assert list(place.parent.glob("*.so")) == [place]


@needs_root
def test_a_library_or_folder_of_another_user_is_not_used(small, monkeypatch):
    place = planted(small, monkeypatch)
    os.chown(place, 12345, 12345)
    assert works(build.kernel())
    os.chown(place, 0, 0)
    os.chown(place.parent, 12345, 12345)
    built = build.kernel()
    assert works(built)
    assert "belongs to another user" in built.path


def test_a_link_is_not_followed(small, monkeypatch):
    place = planted(small, monkeypatch)
    elsewhere = small / "elsewhere.so"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    assert works(build.kernel())


def test_a_cache_that_cannot_be_made(small, monkeypatch):
    (small / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(small / "file"))
    built = build.kernel()
    assert works(built)
    assert built.path.startswith("not kept: no cache")


@needs_user
def test_a_home_that_is_read_only(small, monkeypatch):
    (small / "home").mkdir(mode=0o500)
    monkeypatch.setenv("XDG_CACHE_HOME", str(small / "home"))
    assert works(build.kernel())


def test_a_full_disk(small, monkeypatch):
    full = 'case "$*" in *"/cache/tether/"*) echo "ld: final link failed: No space left on device" >&2; exit 1;; esac'
    script, calls = compiler(small, before=full)
    monkeypatch.setenv("CC", script)
    built = build.kernel()
    assert works(built)
    assert built.path == "not kept: the cache cannot be written"
    assert calls() == 2
    assert libraries(small) == []
    everywhere = 'echo "ld: final link failed: No space left on device" >&2; exit 1'
    script, _ = compiler(small, before=everywhere)
    (small / "source" / "native.c").write_text("int answer(void) { return 42; } // other\n", encoding="utf-8")
    with pytest.raises(build.Failed, match="No space left on device"):
        build.kernel()


def test_a_relative_cache_is_not_used(small, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(small))
    monkeypatch.chdir(small)
    assert build.cache() == small / ".cache" / "tether" / "kernels"


def test_a_compiler_with_arguments(small, monkeypatch):
    script, calls = compiler(small)
    ccache = small / "my ccache"
    ccache.write_text('#!/bin/sh\nexec "$@"\n', encoding="utf-8")
    ccache.chmod(0o755)
    monkeypatch.setenv("CC", f"'{ccache}' {script} -pipe")
    monkeypatch.setenv("TETHER_CFLAGS", "-DEXTRA='1 2'")
    built = build.kernel()
    assert works(built)
    assert built.compiler == (str(ccache), script, "-pipe")
    assert built.flags[-1] == "-DEXTRA=1 2"
    assert calls() == 1
    monkeypatch.setenv("CC", "'unbalanced")
    with pytest.raises(build.Failed, match="cannot be split"):
        build.kernel()


def test_what_the_compiler_cannot_do_is_given_up_one_by_one(small, monkeypatch):
    def refuse(word):
        return f'case "$*" in *"{word}"*) echo "cc: error: {word}" >&2; exit 1;; esac'

    for words, want in (
        ((), ("-fopenmp",)),
        (("-fopenmp",), ()),
        (("-fopenmp -DPLAIN", "-fPIC"), None),
    ):
        script, _ = compiler(small, before="\n".join(refuse(word) for word in words))
        monkeypatch.setenv("CC", f"{script} -DN{len(words)}")
        if want is None:
            with pytest.raises(build.Failed, match="mycc: cc: error: -fPIC"):
                build.kernel()
        else:
            assert build.kernel().flags[len(build.FLAGS) :] == want
    plain = 'case "$*" in *-DPLAIN*) ;; *) echo no clones >&2; exit 1;; esac'
    script, _ = compiler(small, before=plain)
    monkeypatch.setenv("CC", f"{script} -DX")
    assert build.kernel().flags[len(build.FLAGS) :] == ("-fopenmp", "-DPLAIN")


def test_several_processes_at_once(small):
    command = [sys.executable, "-c", CHILD, build.__file__, str(build.FOLDER)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate(timeout=60)[0].strip() for process in running] == ["42"] * 4
    assert len(libraries(small)) == 1
    assert len(list(libraries(small)[0].parent.iterdir())) == 1


def test_a_plain_c_locale(small):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, build.__file__, str(build.FOLDER)],
        env={**os.environ, **plain},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "42", done.stderr


@pytest.mark.parametrize(
    ("variables", "reason"),
    [({"CC": "no-such-compiler"}, "no-such-compiler"), ({"CC": "false"}, "false: exit code 1")],
)
def test_one_warning_says_why_there_is_no_kernel(small, monkeypatch, variables, reason):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.warns(UserWarning, match=f"without its compiled kernel.*{reason}.*TETHER_NATIVE=0") as caught:
        assert reason in native._build_once.__wrapped__()
    assert len(caught) == 1


def test_no_warning_where_none_is_wanted(small, monkeypatch, recwarn):
    monkeypatch.setenv("TETHER_NATIVE", "0")
    assert "TETHER_NATIVE=0" in native._build_once.__wrapped__()
    assert not recwarn.list


def test_a_source_that_does_not_compile_is_quoted(small):
    (small / "source" / "native.c").write_text("int answer(void) { return nowhere; }\n", encoding="utf-8")
    with pytest.raises(build.Failed, match="cc: "):
        build.kernel()


def test_describe_tells_what_is_at_work(monkeypatch):
    text = native.describe()
    if native.library() is None:
        assert text.startswith("no compiled kernel")
        return
    for word in ("compiler", "-ffp-contract=off", "instructions", "library", "BLAS"):
        assert word in text
    built = native._built()
    assert isinstance(built.library, ctypes.CDLL)
    assert Path(built.path).exists() or built.path.startswith("not kept")
    monkeypatch.setattr(native, "_built", lambda: "no reason")
    assert native.describe() == "no compiled kernel: no reason"
