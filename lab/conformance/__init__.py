"""Histories that run on a model, on the fake store and on a real one, and must agree after every step.

The model is made from the table of `fencepost.core.states` and says which rows may change how; the fake store and
PostgreSQL must show the very same rows. A history is random, by Hypothesis, and short. It has two sessions, whose
transactions may overlap and wait for each other. Two of three histories are about messages, their breakers and
rates, inboxes and fences; one of three is about jobs and schedules; the ledger of attempts is part of both.
`reach` lists which statements and operations of the store are exercised so, and says why the others are not.

Time passes without sleeping. On PostgreSQL every stored instant is moved into the past by as much, which is the
same as moving the clock on; the fake store and the model have a clock that is moved. All durations are minutes and
are compared in whole ones: the milliseconds that a history takes do not matter. The fake clock moves on by one
between any two statements, as a real one does. A history that disagrees after its machine stood still
for longer than those minutes allow proves nothing, and is begun anew; reports count that.
"""
