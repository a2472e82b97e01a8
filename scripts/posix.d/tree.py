"""Makes a tree of sources that make(1) builds, and a program that checks itself: `tree.py DIR FOLDERS FILES`."""

import os
import sys

top, folders, files = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.makedirs(top)
total = 0
for d in range(folders):
    folder = os.path.join(top, f"d{d}")
    os.makedirs(os.path.join(folder, "include"))
    with open(os.path.join(folder, "include", f"d{d}.h"), "w") as header:
        header.writelines(f"int f{d}_{f}(int);\n" for f in range(files))
        header.write(f"int all{d}(void);\n")
    for f in range(files):
        total += d * files + f
        with open(os.path.join(folder, f"f{f}.c"), "w") as source:
            source.write(f'#include "include/d{d}.h"\n')
            source.write("".join(f"/* line {line} of {d}/{f} */\n" for line in range(1 + (d * 31 + f * 17) % 400)))
            source.write(f"int f{d}_{f}(int n) {{ return n + {d * files + f}; }}\n")
    with open(os.path.join(folder, "all.c"), "w") as source:
        source.write(f'#include "include/d{d}.h"\nint all{d}(void) {{ int n = 0;\n')
        source.writelines(f"n = f{d}_{f}(n);\n" for f in range(files))
        source.write("return n; }\n")
    with open(os.path.join(folder, "Makefile"), "w") as makefile:
        makefile.write("objects := $(patsubst %.c,%.o,$(wildcard *.c))\nlib.a: $(objects)\n\t$(AR) rcs $@ $^\n")
    os.symlink(f"../d{d}/include", os.path.join(folder, "self"))
with open(os.path.join(top, "main.c"), "w") as source:
    source.write("".join(f'#include "d{d}/include/d{d}.h"\n' for d in range(folders)))
    source.write("int main(void) { long n = 0;\n" + "".join(f"n += all{d}();\n" for d in range(folders)))
    source.write(f"return n != {total}; }}\n")
with open(os.path.join(top, "Makefile"), "w") as makefile:
    makefile.write(f"libs := $(foreach d,$(shell seq 0 {folders - 1}),d$(d)/lib.a)\n")
    makefile.write("program: main.o $(libs)\n\t$(CC) -o $@ $^\n")
    makefile.write("$(libs): force\n\t$(MAKE) -C $(dir $@) lib.a\n.PHONY: force\n")
with open(os.path.join(top, ".gitignore"), "w") as ignored:
    ignored.write("*.o\n*.a\n/program\n")
