# Two commands do everything: `make run` (the main job) and `make test` (tests, types, lint).
# The environment is made once and kept; PYTHON chooses the interpreter it is made from.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MOONCAKE := .venv-mooncake
# pip before 25.3 builds with what the first says, later ones with what the second does.
PINNED := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt
PIP    := $(PINNED) $(BIN)/python -m pip --quiet --disable-pip-version-check install --no-compile
# Bytecode is kept, apart from the sources, also where the environment says that none is to be written: tests start hundreds of
# processes, and one that imports vLLM compiles for ten seconds if none is there.
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/build/bytecode
unexport PYTHONDONTWRITEBYTECODE
# What fails is run once more alone; what passes then is told of as flaky.
AGAIN  := $(BIN)/python -m tests.again $(BIN)/python
ARGS   ?=
VLLM   ?= 0.33.0 0.30.0 0.21.0
SGLANG ?= 0.5.23 0.5.20 0.5.14 0.5.13.post1
LMCACHE ?= 0.5.6

# The releases that the connector supports; the older ones in VLLM are for the watch.
TAKEN  := 0.33.0 0.32.0 0.31.0 0.30.0

# All tests are spread over the processors; who has done its part takes from another.
SPREAD := --numprocesses auto --dist worksteal
NIGHTLY := -m 'slow or not slow'

# What every build tests both ways, interpreted and compiled: walks that compare all columns after each call, the ledger, and the
# scheduler's own walks. The rest, with what explores worlds, is for the night.
BOTH_WAYS := tests/both_ways/test_both_ways.py tests/ledger tests/offload/test_offload.py
ALL_BOTH_WAYS := $(addprefix tests/,both_ways ledger offload cli/test_check.py \
  $(addprefix testing/test_,explore.py scenarios.py walk.py world.py worlds.py) proof/test_ledger_world.py)

# What `make check` leaves out, because it is slow; everything else is in it, so that a new test is in it by itself.
LONG := tests/both_ways $(addprefix tests/proof/test_,ledger_world.py mutants.py) \
  $(addprefix tests/testing/test_,plugin.py processes.py scenario_cases.py story.py worlds.py) \
  $(addprefix tests/toy/test_replay,.py _copiers.py _groups.py) \
  tests/drawing/test_viewer.py tests/project/test_bench.py \
  tests/test_files.py::test_file_without_end_is_refused_with_little_memory \
  tests/ledger/test_connector_ledger.py::test_what_is_told_of_a_step_is_what_is_told_one_by_one \
  $(addprefix tests/recording/test_recording_check.py::test_check_finds_,nothing_in_hybrid_runs any_line_that_is_missing \
    a_missing_line_without_sizes_or_it_has_no_consequence) \
  tests/recording/test_lives.py::test_lives_end_where_the_ledger_stands \
  tests/copiers/test_distributed.py::test_ranks_replay_under_torchrun \
  tests/copiers/test_shared.py::test_ranks_that_are_killed_at_any_moment_leave_nothing_behind \
  $(addprefix tests/proof/test_promela.py::test_spin_counts_the_states_,that_the_explorer_counts of_the_other_worlds) \
  tests/recording/test_perfetto.py::test_trace_is_written_in_bounded_memory \
  $(addprefix tests/project/test_monitoring.py::test_,promtool_takes_the_alerts_and_finds_each_play_as_it_is_written \
    plays_notice_an_alert_that_is_spoiled) \
  tests/project/test_examples.py tests/cli/test_doctor.py::test_doctor_says_one_line_a_fact

.PHONY: help run test check unit compiled test-compiled test-sanitized bench-compiled wheels types lint explore mutants promela source-mutants bench test-gpu bench-gpu vllm test-vllm nightly-vllm bench-vllm bench-vllm-compiled vllm-watched vllm-behaviour vllm-types sglang test-sglang nightly-sglang lmcache test-lmcache nightly-lmcache nightly-findings model test-model nightly-model bench-model test-mooncake bench-mooncake spec docs format clean
.DEFAULT_GOAL := help

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*##/\t/' | expand -t 16

run: $(VENV)/.run  ## replay a workload through the lifecycles (ARGS='--faults --json', say)
	@$(BIN)/blocklife replay $(ARGS)

test: lint  ## everything that must pass: lint, types, tests
	@$(MAKE) --silent --jobs=2 types unit

check: lint types  ## lint, types and the quick tests: under two minutes on two cores
	@echo 'check: tests, without $(words $(LONG)) that are slow'
	@$(BIN)/python -m pytest $(SPREAD) $(foreach each,$(LONG),$(if $(findstring ::,$(each)),--deselect,--ignore)=$(each)) $(ARGS)

unit: $(VENV)/.dev
	@echo 'tests'
	@$(AGAIN) -m pytest $(SPREAD) $(ARGS)
	@$(if $(strip $(ARGS)),,$(call both-ways,compiled,checked,,$(BOTH_WAYS)))

# $(1) is the folder below build, $(2) the way to compile, $(3) what the tests' environment has besides, $(4) the tests, $(5) which of them, if not those of every build. Status 3: there is no compiler here, which is no failure.
define both-ways
$(BIN)/python compile_core.py build/$(1) --as $(2); status=$$?; \
if [ $$status -eq 3 ]; then echo 'the tests of the core ran interpreted only' >&2; exit 0; fi; \
[ $$status -eq 0 ] && cd build/$(1) && $(3) PYTHONPATH=$(CURDIR)/build/$(1) BLOCKLIFE_EXPECT_CORE=compiled \
  $(CURDIR)/$(BIN)/python -m tests.again $(CURDIR)/$(BIN)/python -m pytest $(SPREAD) -m '$(or $(5),not slow) and not interpreted' $(or $(ARGS),$(4))
endef

compiled: $(VENV)/.dev  ## a copy of the project in build/compiled whose core runs compiled, with checks of every index; only what changed is built
	@$(BIN)/python compile_core.py build/compiled

test-compiled: $(VENV)/.dev  ## the tests of ledger, scheduler and explorer with the core compiled
	@$(call both-ways,compiled,checked,,$(ALL_BOTH_WAYS))
	@$(call both-ways,compiled,checked,,tests/both_ways/test_both_ways.py,slow)

# The interpreter is not built with them, so that theirs must be loaded first; it leaks by design, and its own allocator would hide much.
SANITIZED := LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" PYTHONMALLOC=malloc \
  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1

test-sanitized: $(VENV)/.dev  ## the same under gcc's sanitizers for addresses and undefined behaviour, without those checks
	@$(call both-ways,sanitized,sanitized,$(SANITIZED),$(ALL_BOTH_WAYS))

bench-compiled: $(VENV)/.dev  ## make bench with the core compiled as it is shipped
	@$(BIN)/python compile_core.py build/shipped --as shipped
	@cd build/shipped && PYTHONPATH=$(CURDIR)/build/shipped $(CURDIR)/$(BIN)/python -m tests.bench $(ARGS)

wheels: $(VENV)/.dev  ## everything that is published, into dist: sources, a wheel without extensions, one for each Python here; each is tried
	@$(BIN)/python -m tests.wheels

types: $(VENV)/.dev
	@echo 'types: mypy'
	@$(BIN)/python -m mypy

lint: $(VENV)/.dev
	@echo 'lint: ruff'
	@$(BIN)/python -m ruff check --quiet .
	@$(BIN)/python -m ruff format --quiet --check .

explore: $(VENV)/.dev mutants  ## the deeper runs: large worlds, all mutants from nothing, a long walk
	@$(BIN)/python -m pytest $(SPREAD) -m slow $(ARGS)
	@$(BIN)/blocklife check --walk 200000 --seed 1

mutants: $(VENV)/.dev  ## judge every mutant in every small world, and write specs/mutants.csv
	@$(BIN)/python -m tests.proof.mutants --write

promela: $(BIN)/python  ## print a small world of the ledger for SPIN (WORLD='deadlines,contract=hold')
	@$(BIN)/python -m tests.proof.judges $(WORLD)

source-mutants: $(VENV)/.dev  ## draw 300 small changes of the source, find the test that notices each, and write specs/source-mutants.md: an hour, and half of one where vLLM is
	@nice -n 10 $(BIN)/python -m tests.proof.source_mutants --seed 1 --count 300 --page specs/source-mutants.md $(ARGS)
	@if $(BIN)/python -m tests.vllm.run --python 0.33.0 -c '' 2>/dev/null; then \
	  nice -n 10 $(BIN)/python -m tests.vllm.run --python 0.33.0 -m tests.proof.source_mutants --connector \
	    --seed 1 --count 130 --page specs/source-mutants.md $(ARGS); \
	else echo 'what of the connector needs vLLM is not judged: vLLM 0.33.0 is not here (make vllm)'; fi

bench: $(VENV)/.dev  ## ratios against the peers, and against the commit before the kernel, measured in one run
	@$(BIN)/python -m tests.bench $(ARGS)

test-gpu: $(VENV)/.dev  ## what needs a CUDA device; says so where there is none
	@$(BIN)/python -m pytest -m gpu tests $(ARGS)

bench-gpu: $(VENV)/.dev  ## how fast pages move between a GPU and the host, against the link and the peers
	@$(BIN)/python -m tests.bench.gpu $(ARGS)

vllm: $(BIN)/python  ## fetch vLLM's scheduler side for tests: 1.4 GB, once (VLLM='0.33.0 0.23.0', say)
	@$(BIN)/python -m tests.vllm.fetch $(VLLM)

OFFLOADING := tests/v1/kv_connector/unit/offloading_connector
TIERING := tests/v1/kv_offload/tiering

test-vllm: $(VENV)/.dev vllm  ## our tests under vLLM's real scheduler; 0.33.0's own with the watch attached, each release's against our connector
	@for release in $(VLLM); do \
	  $(AGAIN) -m tests.vllm.run --ours $$release $(SPREAD) $(ARGS) || exit 1; \
	done
	@$(MAKE) --silent -j2 --output-sync vllm-watched vllm-behaviour vllm-types

vllm-watched:
	@$(AGAIN) -m tests.vllm.run 0.33.0 -q -p watched $(OFFLOADING) tests/v1/simple_kv_offload $(TIERING)

vllm-behaviour:
	@for release in $(filter $(TAKEN),$(VLLM)); do \
	  $(AGAIN) -m tests.vllm.run $$release -q -p behaviour $(OFFLOADING)/test_scheduler.py || exit 1; \
	done

vllm-types:
	@$(BIN)/python -m tests.vllm.run --types $(firstword $(VLLM))

nightly-vllm: $(VENV)/.dev  ## the same in seven releases, the tables of seed bugs and of planted ones, a thousand runs with random features, and a million steps under the watch: hours
	@$(MAKE) --silent test-vllm VLLM='$(TAKEN) 0.23.0 0.22.1 0.21.0' ARGS="$(NIGHTLY)"
	@for release in $(TAKEN); do $(BIN)/python -m tests.vllm.run --types $$release || exit 1; done
	@$(BIN)/python -m tests.vllm.watched seeds
	@$(BIN)/python -m tests.vllm.run --python 0.33.0 -m tests.vllm.planted
	@$(BIN)/python -m tests.vllm.run --python 0.33.0 -m tests.vllm.fuzz --runs 1000
	@$(BIN)/python -m tests.vllm.run --python 0.33.0 -m tests.vllm.watched long --log $(CURDIR)/.vllm/long.jsonl $(ARGS)

# The watch here and in the commit before the kernel, in turns.
BESIDE_BEFORE := --before --running 64 256 --samples 1 --modes count strict --rounds 3 --clock processor

bench-vllm: override VLLM := 0.33.0
bench-vllm: $(VENV)/.dev vllm  ## what our connector and the watch cost in a step of vLLM's scheduler, beside its own connector
	@$(BIN)/python -m tests.vllm.run --python 0.33.0 -m tests.vllm.bench_connector $(ARGS)
	@$(BIN)/python -m tests.vllm.run --python 0.33.0 -m tests.vllm.bench_watch $(ARGS)
	@$(BIN)/python -m tests.vllm.run --python 0.33.0 -m tests.vllm.bench_watch $(BESIDE_BEFORE)

bench-vllm-compiled: override VLLM := 0.33.0
bench-vllm-compiled: $(VENV)/.dev vllm  ## the same of our connector with the core compiled as it is shipped, and of the watch beside the commit before the kernel
	@$(BIN)/python compile_core.py build/shipped --as shipped
	@$(BIN)/python -m tests.vllm.run --python --copy build/shipped 0.33.0 -m tests.vllm.bench_connector $(ARGS)
	@$(BIN)/python -m tests.vllm.run --python --copy build/shipped 0.33.0 -m tests.vllm.bench_watch $(BESIDE_BEFORE)

sglang: $(BIN)/python  ## fetch SGLang's cache side for tests: 0.6 GB, once (SGLANG='0.5.23 0.5.14', say; SOURCES=CHECKOUT for its own tests)
	@$(BIN)/python -m tests.sglang.fetch $(if $(SOURCES),--sources $(SOURCES)) $(SGLANG)

nightly-sglang: $(VENV)/.dev sglang  ## our tests in all releases of SGLang, and random traffic in the newest under the watch: 500 000 steps (STEPS=100000, say)
	@$(MAKE) --silent test-sglang ARGS="$(NIGHTLY)"
	@$(BIN)/python -m tests.sglang.run --python $(firstword $(SGLANG)) -m tests.sglang.nightly $(if $(STEPS),--steps $(STEPS))

test-sglang: $(VENV)/.dev sglang  ## our tests under SGLang's real scheduler and cache, and its own unit tests where a checkout was fetched
	@for release in $(SGLANG); do \
	  $(AGAIN) -m tests.sglang.run $$release $(SPREAD) $(ARGS) || exit 1; \
	done
	@if test -d .sglang/sources; then $(AGAIN) -m tests.sglang.run --theirs $(firstword $(SGLANG)) -n 2; \
	else echo "SGLang's own tests are not here (make sglang SOURCES=a checkout of it)"; fi

lmcache: $(BIN)/python  ## fetch LMCache's multi-process mode for tests: 0.4 GB, once (LMCACHE='0.5.6', say)
	@$(BIN)/python -m tests.lmcache.fetch $(LMCACHE)

test-lmcache: $(VENV)/.dev lmcache  ## our tests under LMCache's real storage manager, in process and as a server of its own
	@for release in $(LMCACHE); do \
	  $(AGAIN) -m tests.lmcache.run $$release $(SPREAD) $(ARGS) || exit 1; \
	done

nightly-lmcache: $(VENV)/.dev lmcache  ## the same with all that is slow, all planted bugs, and half a million places under the watch
	@$(MAKE) --silent test-lmcache ARGS="$(NIGHTLY)"
	@$(BIN)/python -m tests.lmcache.run --python $(firstword $(LMCACHE)) -m tests.lmcache.planted
	@$(BIN)/python -m tests.lmcache.run --python $(firstword $(LMCACHE)) -m tests.lmcache.nightly

nightly-findings: $(VENV)/.dev  ## every script of a finding in every release that is fetched, against specs/measurements/findings.csv (ARGS=--write)
	@$(BIN)/python -m tests.behind.findings $(ARGS)

model: $(BIN)/python  ## fetch what a real model behind vLLM needs on a CPU: 1.8 GB in all, once
	@$(BIN)/python -m tests.model.fetch

test-model: $(VENV)/.dev model  ## real models behind vLLM: the same tokens with our connector as without, and controls that go red
	@$(AGAIN) -m tests.model.run $(SPREAD) $(ARGS)

nightly-model: $(VENV)/.dev model  ## the same, all of it: every model with every choice, and servers that end and start again
	@$(MAKE) --silent test-model ARGS="$(NIGHTLY)"

bench-model: $(VENV)/.dev  ## time to the first token and tokens a second of conversations: computed, hit on the device, hit in host memory
	@$(BIN)/python -m tests.model.fetch big
	@$(BIN)/python -m tests.model.run -m tests.model.bench $(ARGS)

# Mooncake's package is large and needs libraries of the system, so it has an environment of its own; CI does without.
$(MOONCAKE)/.made: pyproject.toml constraints.txt
	@echo "making the environment in $(MOONCAKE) (once): 46 MB" >&2
	@test -x $(MOONCAKE)/bin/python || $(PYTHON) -m venv $(MOONCAKE)
	@$(PINNED) $(MOONCAKE)/bin/python -m pip --quiet --disable-pip-version-check install --editable '.[mooncake]' pytest
	@$(MOONCAKE)/bin/python -c 'import mooncake.store' || { echo 'on Debian: apt install libibverbs1 librdmacm1' >&2; exit 1; }
	@touch $@

test-mooncake: $(MOONCAKE)/.made  ## the store over Mooncake with its real master; needs Debian's libibverbs1 and librdmacm1
	@$(MOONCAKE)/bin/python -m pytest tests/tiers/test_mooncake.py tests/tiers/test_mooncake_client.py $(ARGS)

bench-mooncake: $(MOONCAKE)/.made  ## how fast content moves to Mooncake and back, beside its client alone
	@$(MOONCAKE)/bin/python -m tests.tiers.bench_mooncake $(ARGS)

spec: $(VENV)/.dev  ## write all that is generated: parts and tables of specs/, the page of all refusals, the stubs of the doors
	@$(BIN)/blocklife spec --write
	@$(BIN)/python -m tests.ledger.refusals
	@$(BIN)/python -m tests.project.doors
	@$(BIN)/python -m tests.project.run_picture
	@$(BIN)/python -m tests.project.alerts
	@$(BIN)/python -m tests.project.mistakes
	@$(BIN)/python -m tests.project.windows
	@$(BIN)/python -m tests.project.engines
	@$(BIN)/python -m tests.behind.findings --pages
	@$(BIN)/python -m tests.vllm.behaviour --write

# The same sources give the same bytes: no date of today goes in. Nothing is fetched, now or when a page is read.
docs: $(VENV)/.docs  ## the documentation as a site, in build/site: open build/site/index.html
	@$(BIN)/python specs/site/stage.py build/pages
	@SOURCE_DATE_EPOCH=0 NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo 'build/site/index.html'

format: $(VENV)/.dev  ## let ruff write the code in one form
	@$(BIN)/python -m ruff check --quiet --fix .
	@$(BIN)/python -m ruff format --quiet .

clean:  ## forget the environment, all caches, and what was built
	rm -rf $(VENV) $(MOONCAKE) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "blocklife needs Python 3.11 or newer; set PYTHON=")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python pyproject.toml constraints.txt
	@echo "making the environment in $(VENV) (once)" >&2
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "making the test environment in $(VENV) (once)" >&2
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.run $(VENV)/.docs

$(VENV)/.docs: $(BIN)/python pyproject.toml constraints.txt
	@echo "adding what makes the site to $(VENV) (once)" >&2
	@$(PIP) --editable '.[docs]'
	@touch $@ $(VENV)/.run
