#!/bin/sh
# Theseus (theseus-ai 0.2.3) in an environment of its own, with what mslsq needs; mslsq itself is that of this folder:
#
#   sh scripts/install_theseus.sh [FOLDER]       FOLDER: .venv-theseus by default; PYTHON=python3.12 names another Python
#
# Theseus has no wheel: it is built where it is installed, with the torch that is there (so --no-build-isolation). Its
# dependency scikit-sparse is compiled with Cython against the headers of SuiteSparse, which the system has to provide
# (Debian, Ubuntu: libsuitesparse-dev), and from 0.5 on it lacks what Theseus imports.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-.venv-theseus}
case $folder in /*) ;; *) folder=$PWD/$folder ;; esac
python=${PYTHON:-python3}
constraints="$here/constraints.txt"

fail() {
    echo "install_theseus: $1" >&2
    exit 1
}

step() {
    echo "== $1"
}

command -v "$python" > /dev/null || fail "no $python: PYTHON=... names the one to use (3.11 or newer)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$python is older than 3.11"
command -v cc > /dev/null || command -v gcc > /dev/null || fail "no C compiler: install gcc (Debian: build-essential)"

found=
for include in ${SUITESPARSE_INCLUDE_DIR:-} /usr/include/suitesparse /usr/local/include/suitesparse /usr/include \
    /usr/local/include /opt/homebrew/include/suitesparse; do
    if [ -f "$include/cholmod.h" ]; then found=$include; fi
done
if [ -z "$found" ] && command -v apt-get > /dev/null && [ "$(id -u)" = 0 ]; then
    step "SuiteSparse: apt-get install libsuitesparse-dev"
    apt-get install -y -q libsuitesparse-dev > /dev/null || fail "apt-get could not install libsuitesparse-dev"
    found=/usr/include/suitesparse
fi
[ -n "$found" ] || fail "no cholmod.h: install SuiteSparse (Debian: sudo apt-get install libsuitesparse-dev; \
Homebrew: suite-sparse), or name its folder by SUITESPARSE_INCLUDE_DIR"

step "environment $folder"
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder" || fail "no environment could be made in $folder"
pip="$folder/bin/python -m pip install --disable-pip-version-check --quiet"

step "what the builds need: torch, NumPy, SciPy, Cython"
$pip --constraint "$constraints" setuptools wheel torch numpy scipy || fail "torch could not be installed"
$pip Cython || fail "Cython could not be installed"

step "scikit-sparse, compiled against $found"
SUITESPARSE_INCLUDE_DIR=$found $pip --no-build-isolation "scikit-sparse<0.5" \
    || fail "scikit-sparse does not compile; the lines above say why (headers of SuiteSparse: $found)"

step "Theseus"
$pip --constraint "$constraints" --no-build-isolation "theseus-ai==0.2.3" || fail "theseus-ai could not be built"

step "what mslsq and its tests need"
$pip --constraint "$constraints" einops jaxtyping matplotlib pytest pytest-xdist hypothesis || fail "they could not be installed"

(cd "$here" && "$folder/bin/python" -c '
import torch, theseus
import mslsq.interop.theseus
print(f"Theseus {theseus.__version__} and torch {torch.__version__} beside mslsq")
')
echo "From $here: $folder/bin/python -m pytest tests/interop/theseus"
