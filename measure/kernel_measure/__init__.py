"""Measuring: tasks, sandboxed workers, timing protocol, guards and searches on a real GPU.

In the worker process, where programs under test run: worker (entry), evaluate, guards, failures,
timing, device, torch_device, following, kernel_text, profiler.
Around it, in the process that starts workers: process, sandbox, memory; measurer (one worker kept
alive), station (compilers, then a measurer).
What is recorded: plan, record, runs (logs of runs), search with strategies and questions, chains,
remeasure, verdict, logs (files).
Both sides share settings, tasks and the limits of sandbox; cli is above all of it. dry_run drives
the worker's modes ``dry`` and ``profile``.
Start reading at measurer.py, then process.py, worker.py, evaluate.py.
"""
