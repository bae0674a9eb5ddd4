"""A control plane ("Core") in Python, as small as one can be: what the comments of the protocol say, and nothing that they do not.

The messages are generated from the .proto files by grpcio-tools; see main_turn.py.
"""

import time

import grpc
from runtime_bridge.v1 import assignment_pb2, execution_pb2, function_pb2, runtime_pb2, runtime_pb2_grpc, turn_pb2

# The version that this client is written in. The comment of the service `Runtime` names the version of the files.
VERSION = "0.8"
# How long an answer is waited for beyond what the call itself may take.
ANSWER = 20.0
# How long a call whose answer was lost is made again.
PATIENCE = 30.0


class Refused(Exception):
    """The bridge says that a call had no effect, and why."""

    def __init__(self, error):
        trailers = dict(error.trailing_metadata() or ())
        self.reason = trailers.get("runtime-bridge-reason", "")
        super().__init__(f"{self.reason}: {error.details()}")


def lost(error):
    """Whether nobody knows if a call had an effect: a status of the bridge has its reason in a trailer, others have none."""
    return "runtime-bridge-reason" not in dict(error.trailing_metadata() or ())


def persist(call):
    """Makes a call until it is answered. Every mutation is idempotent, so the same request may be sent again."""
    until = time.monotonic() + PATIENCE
    pause = 0.05
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            if not lost(error):
                raise Refused(error) from None
            if time.monotonic() > until:
                raise
        # The pause of a client between two tries, not a wait for something to be true.
        time.sleep(pause)
        pause = min(2 * pause, 2.0)


def over_socket(path):
    """Reaches a bridge by its socket."""
    # The library would take the socket's path, and the comment of the service asks for a host.
    return lambda: grpc.insecure_channel(f"unix:{path}", [("grpc.default_authority", "localhost")])


def over_tls(address, authority, certificate, key, host=None):
    """Reaches a bridge by HOST:PORT with mutual TLS; the next three are files in PEM form. Who calls is the URI name in the certificate.

    A relay is reached in the same way; `host` is then the name that its presence has for the Environment, where that is not the name of the address.
    """
    authority, key, certificate = (open(path, "rb").read() for path in (authority, key, certificate))
    named = [("grpc.ssl_target_name_override", host), ("grpc.default_authority", host)] if host else []
    return lambda: grpc.secure_channel(address, grpc.ssl_channel_credentials(authority, key, certificate), named)


class Core:
    """One connection to a bridge, which `dial` makes (see `over_socket` and `over_tls`)."""

    def __init__(self, dial, version=VERSION):
        self.channel = dial()
        self.stub = runtime_pb2_grpc.RuntimeStub(self.channel)
        self.metadata = (("runtime-protocol-version", version),)

    def call(self, name, request, within=ANSWER):
        """One unary call."""
        method = getattr(self.stub, name)
        return persist(lambda: method(request, timeout=within, metadata=self.metadata))

    def info(self):
        """Who the bridge is. Refuses a bridge that does not take what this client is written in."""
        info = self.call("GetRuntimeInfo", runtime_pb2.GetRuntimeInfoRequest())
        number = lambda version: tuple(int(part) for part in version.split("."))
        oldest, own = number(info.oldest_accepted), number(info.protocol_version)
        if not (number(VERSION)[0] == own[0] and oldest <= number(VERSION) <= own):
            raise SystemExit(f"written in {VERSION}, and the bridge takes {info.oldest_accepted} to {info.protocol_version}")
        return info

    def close(self):
        """Ends the connection; nothing that runs ends with it."""
        self.channel.close()


class Session:
    """A Session that is bound to an assignment."""

    def __init__(self, core, session_id, assignment_id, epoch):
        self.core = core
        self.assignment = assignment_pb2.AssignmentRef(session_id=session_id, assignment_id=assignment_id, epoch=epoch)

    def bind(self, directory):
        """Records the fence and the directory in which tools work."""
        workspace = assignment_pb2.Workspace(environment_id="local", directory=directory)
        return self.core.call("BindAssignment", assignment_pb2.BindAssignmentRequest(assignment=self.assignment, workspace=workspace))

    def prepare(self, preparation_id, configuration, key):
        """Gets an Executor ready. A stream that is lost is opened again with the same id."""
        credential = execution_pb2.Credential(name="model", value=key)
        request = execution_pb2.PrepareExecutionRequest(
            assignment=self.assignment, preparation_id=preparation_id, configuration=configuration, credentials=[credential]
        )

        def attempt():
            for answer in self.core.stub.PrepareExecution(request, metadata=self.core.metadata):
                if answer.WhichOneof("progress") == "ready":
                    return answer.ready
            raise AssertionError("the stream ended with OK and without `ready`")

        return persist(attempt)

    def start(self, handle, turn_id, text):
        """Starts a Turn."""
        part = turn_pb2.InputPart(text=text)
        request = turn_pb2.StartTurnRequest(assignment=self.assignment, handle=handle, turn_id=turn_id, input=[part])
        return self.core.call("StartTurn", request)

    def steer(self, turn_id, input_id, text):
        """Adds an input to a Turn that runs."""
        part = turn_pb2.InputPart(text=text)
        request = turn_pb2.SteerTurnRequest(assignment=self.assignment, turn_id=turn_id, input_id=input_id, input=[part])
        return self.core.call("SteerTurn", request)

    def submit(self, turn_id, call_id, text):
        """Answers one function call with a text."""
        output = function_pb2.FunctionOutput(text=text)
        result = function_pb2.FunctionResult(turn_id=turn_id, call_id=call_id, success=True, output=output)
        request = function_pb2.SubmitFunctionResultsRequest(assignment=self.assignment, results=[result])
        (outcome,) = self.core.call("SubmitFunctionResults", request).outcomes
        return outcome.outcome

    def cancel(self, turn_id):
        """Cancels a Turn and waits until it is settled."""
        request = turn_pb2.CancelTurnRequest(assignment=self.assignment, turn_id=turn_id)
        request.wait.FromSeconds(15)
        while True:
            answer = self.core.call("CancelTurn", request, within=15 + ANSWER)
            if answer.outcome != turn_pb2.CANCEL_OUTCOME_PENDING:
                return answer

    def turn(self, turn_id):
        """A Turn as it stands."""
        return self.core.call("GetTurn", turn_pb2.GetTurnRequest(assignment=self.assignment, turn_id=turn_id)).turn

    def acknowledge(self, turn_id, sequence):
        """Tells that everything up to a sequence is stored here."""
        request = turn_pb2.AcknowledgeEventsRequest(assignment=self.assignment, turn_id=turn_id, through_sequence=sequence)
        return self.core.call("AcknowledgeEvents", request).through_sequence

    def release(self):
        """Ends the assignment, under the next epoch."""
        assignment = assignment_pb2.AssignmentRef()
        assignment.CopyFrom(self.assignment)
        assignment.epoch += 1
        request = assignment_pb2.ReleaseAssignmentRequest(assignment=assignment, remove_home=True)
        return self.core.call("ReleaseAssignment", request, within=120)

    def observe(self, turn_id, after=0):
        """The events of a Turn behind a sequence, over as many streams as it takes, to the one that ends it."""
        until = time.monotonic() + PATIENCE
        while True:
            request = turn_pb2.ObserveTurnRequest(assignment=self.assignment, turn_id=turn_id, after_sequence=after)
            stream = self.core.stub.ObserveTurn(request, metadata=self.core.metadata)
            try:
                for answer in stream:
                    until = time.monotonic() + PATIENCE
                    for event in answer.events:
                        if event.sequence != after + 1 and event.WhichOneof("kind") != "events_omitted":
                            raise AssertionError(f"{event.sequence} behind {after}")
                        after = event.sequence
                        yield event
                        if event.WhichOneof("kind") == "turn_ended":
                            return
            except grpc.RpcError as error:
                if not lost(error):
                    raise Refused(error) from None
            finally:
                stream.cancel()
            if time.monotonic() > until:
                raise TimeoutError("the events stay away")
            time.sleep(0.05)


def text(content):
    """The text of an event's part; a large one would be read with `ReadPayload`."""
    assert content.WhichOneof("place") == "text", content
    return content.text
