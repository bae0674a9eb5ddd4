"""The main Turn, against a running bridge: bind, prepare, start, observe over a lost stream and from another connection, answer a function
call, steer, cancel, release. Ends with 0 when everything was as the protocol says, and tells each step in a line.

    python main_turn.py --socket PATH --workspace DIR --provider URL
    python main_turn.py --address HOST:PORT --authority FILE --certificate FILE --key FILE --workspace DIR --provider URL

With a relay at the address, `--host` names the Environment (see the `Presence` service of the enrollment protocol).

The key of the provider is in MODEL_KEY. The folder of the generated messages is on PYTHONPATH; they are made by

    python -m grpc_tools.protoc -I proto --python_out=DIR --grpc_python_out=DIR proto/runtime_bridge/v1/*.proto
"""

import argparse
import os
import sys

from core import Core, Refused, Session, over_socket, over_tls, text
from runtime_bridge.v1 import assignment_pb2, capability_pb2, event_pb2, execution_pb2, function_pb2, turn_pb2

SCHEMA = '{"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}'


def tell(what, *more):
    """One line of the report."""
    print(what, *more, flush=True)


def name(enum, value, prefix):
    """A value of an enum in small letters."""
    return enum.Name(value).removeprefix(prefix).lower()


def declared(core):
    """What this Core needs of the Harness is asked before anything else."""
    info = core.info()
    (codex,) = [harness for harness in info.harnesses if harness.kind == "codex"]
    assert codex.available, codex.unavailable_reason
    for wanted in ("LOCAL_ENVIRONMENT", "FUNCTION_TOOLS", "STEERING", "MESSAGE_OBSERVATION"):
        assert capability_pb2.Capability.Value(f"CAPABILITY_{wanted}") in codex.workspace, wanted
    tell("bridge", info.name, "harness", codex.kind)


def wrong_version(dial):
    """A call in a version that nobody speaks has no effect and says why."""
    other = Core(dial, version="99.0")
    try:
        Session(other, "py-1", "a-1", 1).turn("t-1")
    except Refused as refused:
        tell("refused", refused.reason)
    finally:
        other.close()


def answered_and_steered(session, dial, handle):
    """A Turn that calls a function, and takes an input while it answers."""
    tell("started", session.start(handle, "t-1", "look up Bern").duplicate)
    tell("started again", session.start(handle, "t-1", "look up Bern").duplicate)
    call = None
    events = []
    # The stream is given up at the call, as if the connection had been lost there.
    for event in session.observe("t-1"):
        events.append(event)
        if event.WhichOneof("kind") == "function_call":
            call = event.function_call
            break
    (waits,) = session.turn("t-1").required_actions
    assert waits.function_call.call_id == call.call_id
    tell("function_call", call.name, text(call.arguments))
    for _ in range(2):
        outcome = session.submit("t-1", call.call_id, "It snows in Bern.")
        tell("result", name(function_pb2.ResultOutcome, outcome, "RESULT_OUTCOME_"))
    # Another connection, as that of a Core that was started again, goes on where the first one stopped.
    core = Core(dial)
    again = Session(core, session.assignment.session_id, session.assignment.assignment_id, session.assignment.epoch)
    for event in again.observe("t-1", after=events[-1].sequence):
        events.append(event)
        kind = event.WhichOneof("kind")
        if kind == "function_result_applied":
            assert event.function_result_applied.call_id == call.call_id
            tell("receipt", kind)
        elif kind == "message_delta" and "half" in event.message_delta.text:
            steered = again.steer("t-1", "i-1", "turn left")
            assert steered.input.phase in (turn_pb2.INPUT_PHASE_WRITTEN, turn_pb2.INPUT_PHASE_ACCEPTED), steered
            tell("steered", steered.input.input_id, steered.duplicate)
        elif kind == "input_accepted":
            evidence = event.input_accepted.evidence
            tell(kind, event.input_accepted.input_id, name(event_pb2.InputEvidence, evidence, "INPUT_EVIDENCE_"))
        elif kind == "message_discarded":
            tell(kind, name(event_pb2.DiscardReason, event.message_discarded.reason, "DISCARD_REASON_"))
        elif kind == "message_completed":
            tell("message", text(event.message_completed.text))
        elif kind == "turn_ended":
            tell(kind, name(event_pb2.TurnStatus, event.turn_ended.status, "TURN_STATUS_"))
    assert [event.sequence for event in events] == list(range(1, len(events) + 1)), "a hole in the sequences"
    assert again.acknowledge("t-1", events[-1].sequence) == events[-1].sequence
    core.close()


def cancelled(session, handle):
    """A Turn that is cancelled while it runs a command."""
    session.start(handle, "t-2", "sleep")
    for event in session.observe("t-2"):
        kind = event.WhichOneof("kind")
        if kind == "tool_started":
            answer = session.cancel("t-2")
            tell("cancel", name(turn_pb2.CancelOutcome, answer.outcome, "CANCEL_OUTCOME_"))
        elif kind == "turn_ended":
            tell(kind, name(event_pb2.TurnStatus, event.turn_ended.status, "TURN_STATUS_"))


def main():
    """The whole of it."""
    parser = argparse.ArgumentParser()
    for option in ("--workspace", "--provider"):
        parser.add_argument(option, required=True)
    place = parser.add_mutually_exclusive_group(required=True)
    for option in ("--socket", "--address"):
        place.add_argument(option)
    for option in ("--authority", "--certificate", "--key", "--host"):
        parser.add_argument(option)
    options = parser.parse_args()
    dial = (
        over_socket(options.socket)
        if options.socket
        else over_tls(options.address, options.authority, options.certificate, options.key, options.host)
    )
    key = os.environ["MODEL_KEY"]
    core = Core(dial)
    declared(core)
    wrong_version(dial)
    session = Session(core, "py-1", "a-1", 1)
    session.bind(options.workspace)
    lookup = execution_pb2.FunctionTool(name="lookup", description="Looks a city up.", parameters=SCHEMA)
    provider = execution_pb2.ModelProvider(protocol=capability_pb2.MODEL_PROTOCOL_RESPONSES, base_url=options.provider)
    configuration = execution_pb2.ExecutionConfiguration(
        harness="codex",
        placement=execution_pb2.PLACEMENT_WORKSPACE,
        model="gpt-5.5",
        model_provider=provider,
        tools=execution_pb2.AdmittedTools(functions=[lookup]),
    )
    answered_and_steered(session, dial, session.prepare("p-1", configuration, key).handle)
    ready = session.prepare("p-2", configuration, key)
    tell("prepared", "the same Executor" if ready.reused else "a new Executor")
    cancelled(session, ready.handle)
    outcome = session.release().outcome
    tell("release", name(assignment_pb2.ReleaseOutcome, outcome, "RELEASE_OUTCOME_"))
    core.close()


if __name__ == "__main__":
    sys.exit(main())
