# make demo   takes /usr/share (or DIR=…) through a power cut, a backup and a corrupt disk, with zdb as the judge
# make test   runs every test, with OpenZFS's own tools as the judge
# make nightly  cuts the power a hundred thousand times
# make bench  measures Zuse beside its peers
# Each installs what it needs (scripts/setup says what it does).

PINNED := $(shell scripts/toolchain)
ifneq ($(PINNED),)
export RUSTUP_TOOLCHAIN := $(PINNED)
endif

.PHONY: demo test nightly bench fuzz build setup judge

setup:
	@scripts/setup

judge: setup
	@scripts/get-judge .judge

build: setup
	cargo build --release --bin zuse

demo: setup
	@scripts/demo $(DIR)

test: judge
	scripts/test

nightly: judge
	scripts/nightly

bench: setup
	scripts/bench
