#!/bin/sh
# arm.sh TRAIN - everything compiles for ARM64 without a warning, with each of Debian's gcc for it that is here (12 is
# Debian 12's, 14 Debian 13's), and the quick tests of one process pass under qemu-user, and so does the whole program
# against PyTorch's numbers. Left out: tests that take minutes there and compute in double only.
cd "$(dirname "$0")/.." || exit 1
# Long searches, and what asks the machine itself.
slow='test_(plan_rounds|published|speeds|split|step|simulate|flexsp|pruner|host|timer)$'
here='ranks\.sh|emu|amx|sanitize|race|fuzz|cudnn|cuda|library|launch|campaign|docs_cache|user_cache|build/release/train'
passed=0 failed=0 skipped=0
ok() { passed=$((passed + 1)) && echo "  ok      $1"; }
bad() { failed=$((failed + 1)) && echo "  FAILED  $1" && tail -n 8 "$2"; }
skip() { skipped=$((skipped + 1)) && echo "  skipped $1"; }
finish() {
    echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
    [ $failed = 0 ]
    exit
}
case $(uname -m) in aarch64) skip "this is an ARM64: make test proves it" && finish ;; esac

tests=$(grep '^quick' test/suite | grep -vE "$here" | grep -oE 'build/release/test/[a-z_0-9]+$' | grep -vE "$slow")
programs=$(for t in $tests build/release/test/test_golden; do echo "build/arm/test/${t##*/}"; done)
mkdir -p build/arm
compilers=$(ls /usr/bin/aarch64-linux-gnu-gcc-[0-9]* 2> /dev/null)
[ -n "$compilers" ] || { skip "no gcc for ARM64 here (Debian, Ubuntu: gcc-aarch64-linux-gnu)" && finish; }
for cc in $compilers; do
    words="gcc $($cc -dumpfullversion) compiles everything for ARM64"
    options="MPI=no CUDA=no WERROR=-Werror build=build/arm"
    if make -s CC="$cc" $options build/arm/train $programs > build/arm/log 2>&1; then
        ok "$words"
    else
        bad "$words" build/arm/log
        finish
    fi
done
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static)
[ -n "$qemu" ] || { skip "nothing of it ran: no qemu-aarch64 here (Debian, Ubuntu: qemu-user)" && finish; }
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
printf '#!/bin/sh\nexec %s %s "$@"\n' "$qemu" "$PWD/build/arm/train" > build/arm/emulated
chmod +x build/arm/emulated
for program in $programs; do
    case $program in */test_golden) export TEST_ONLY=ten_steps ;; esac # without MPI; the last one
    timeout 1500 "$qemu" "$program" build/arm/emulated > build/arm/log 2>&1 < /dev/null
    status=$?
    if [ $status = 0 ]; then
        ok "${program##*/} under qemu: $(tail -n 1 build/arm/log)"
    else
        bad "$program under qemu, status $status (124: it took over 1500 s)" build/arm/log
    fi
done
finish
