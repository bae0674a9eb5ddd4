"""One Turn through a relay whose link to the machine is cut in the middle of it: the call comes before, its result is handed in meanwhile, and every event
arrives once. Ends with 0 when everything was so. See scripts/demo-enroll.

    python through_relay.py --address HOST:PORT --host NAME --authority FILE --certificate FILE --key FILE --workspace DIR --provider URL
"""

import argparse
import os

import core as client
from core import Core, Session, over_tls, text
from main_turn import SCHEMA, name, tell
from runtime_bridge.v1 import capability_pb2, event_pb2, execution_pb2, function_pb2

# A link that is away for a while is waited for.
client.PATIENCE = 180.0


def main():
    """The whole of it."""
    parser = argparse.ArgumentParser()
    for option in ("--address", "--host", "--authority", "--certificate", "--key", "--workspace", "--provider"):
        parser.add_argument(option, required=True)
    options = parser.parse_args()
    core = Core(over_tls(options.address, options.authority, options.certificate, options.key, options.host))
    tell("bridge", core.info().runtime_id)
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
    ready = session.prepare("p-1", configuration, os.environ["MODEL_KEY"])
    session.start(ready.handle, "t-1", "call lookup")
    sequences = []
    for event in session.observe("t-1"):
        sequences.append(event.sequence)
        kind = event.WhichOneof("kind")
        if kind == "function_call":
            tell(kind, event.function_call.name, text(event.function_call.arguments))
            tell("cut me off")
            client.time.sleep(2)
            outcome = session.submit("t-1", event.function_call.call_id, "It snows in Bern.")
            tell("result", name(function_pb2.ResultOutcome, outcome, "RESULT_OUTCOME_"))
        elif kind == "function_result_applied":
            tell("receipt", kind)
        elif kind == "message_completed":
            tell("message", text(event.message_completed.text))
        elif kind == "turn_ended":
            tell(kind, name(event_pb2.TurnStatus, event.turn_ended.status, "TURN_STATUS_"))
    assert sequences == list(range(1, len(sequences) + 1)), sequences
    tell("events", len(sequences), "each once")
    session.release()
    core.close()


if __name__ == "__main__":
    main()
