# Recipes run in bash. If FAIRLEAD_TIMES is set, as by tools/times/run, each command of a recipe also appends its target, its
# seconds and its exit status to that file.
ifdef FAIRLEAD_TIMES
TIMES := $(dir $(abspath $(lastword $(MAKEFILE_LIST))))
SHELL := $(TIMES)shell
.SHELLFLAGS = $@
else
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
endif
