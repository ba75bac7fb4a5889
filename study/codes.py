"""The implementation of a scenario: our own executor, unless it names another."""

from halocast.codes.catalogue import OWN, load_code
from halocast.codes.implementation import Implementation
from halocast.study.scenario import Scenario


def scenario_code(scenario: Scenario) -> Implementation:
    return load_code(scenario.code.file or scenario.code.name or OWN)
