"""Every range, enum, degenerate and hostile value of the API as raw protobuf bytes against a real daemon.

Each case gets its status, and a message with field, value and limit. A neighbour runs in the batch all the time and
a canary after each case: both give the tokens that they give alone.
"""

import math
import pathlib
import random
import shutil
import struct
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import daemon as support  # noqa: E402  (the path is set above)

support.parse_settings()

import grpc  # noqa: E402
from augur.v1 import completions_pb2 as pb  # noqa: E402
from augur.v1 import completions_pb2_grpc as rpc  # noqa: E402

OK = grpc.StatusCode.OK
INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
NOT_SERVED = grpc.StatusCode.FAILED_PRECONDITION

CONTEXT, VOCABULARY, BATCH = 8192, 4096, 32
END = 1  # the token that ends a sequence
FORCED_BLOCKS, MOST_BLOCKS = 9, 25
MOST_SAMPLES = 4096
UINT32_MAX, INT32_MAX, INT32_MIN = 2**32 - 1, 2**31 - 1, -2**31
PROMPT = b"The key gives the directory"
NOT_UTF8 = b"a\xff"
MIB = 1 << 20
CALL_LIMIT_S = 60


def varint(value):
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))


def tag(number, wire_type):
    return varint(number << 3 | wire_type)


def integer(number, value):
    return tag(number, 0) + varint(value)


def real(number, value):
    return tag(number, 5) + struct.pack("<f", value)


def raw_real(number, bits):
    return tag(number, 5) + struct.pack("<I", bits)


def data(number, payload):
    return tag(number, 2) + varint(len(payload)) + payload


def packed(number, values):
    return data(number, b"".join(varint(value) for value in values))


def sampling(*fields):
    return text() + data(5, b"".join(fields))


def stopping(*fields):
    return text(b"") + data(6, integer(1, 2) + b"".join(fields)) + data(3, PROMPT)


def output(*fields):
    return text() + data(7, b"".join(fields))


def attention(*fields):
    return text() + data(8, b"".join(fields))


def bias(number, value):
    return data(9, integer(1, number) + value)


def text(payload=PROMPT):
    """A prompt and two tokens at most."""
    return data(3, payload) + data(6, integer(1, 2))


def ids(*values):
    return data(4, packed(1, values)) + data(6, integer(1, 2))


def after(value):
    """The next float32 away from zero."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return struct.unpack("<f", struct.pack("<I", bits + 1))[0]


def float_cases(name, wrap, number, low, high, low_included, smallest=1e-45):
    """What every float of a range must do at its ends, beyond them and with what is no number."""
    limits = f"{'[' if low_included else '('}{low}, {high}]"
    field = (name, limits)
    cases = [(f"{name} {label}", wrap(raw_real(number, bits)), INVALID, field + (word,))
             for label, bits, word in (("NaN", 0x7fc00000, "nan"), ("negative NaN", 0xffc00001, "nan"),
                                       ("infinity", 0x7f800000, "inf"), ("minus infinity", 0xff800000, "-inf"),
                                       ("the largest float", 0x7f7fffff, "3.40282e+38"))]
    cases.append((f"{name} at the upper end", wrap(real(number, high)), OK, ()))
    cases.append((f"{name} above", wrap(real(number, after(high))), INVALID, field))
    cases.append((f"{name} small", wrap(real(number, smallest)), OK, ()))
    cases.append((f"{name} minus zero", wrap(raw_real(number, 1 << 31)), OK if low_included else INVALID,
                  () if low_included else field))
    cases.append((f"{name} at the lower end", wrap(real(number, low)), OK if low_included else INVALID,
                  () if low_included else field))
    below = after(low) if low < 0 else -1e-30
    cases.append((f"{name} below", wrap(real(number, below)), INVALID, field))
    return cases


def range_cases():
    cases = float_cases("sampling.temperature", sampling, 1, 0, 100, True)
    cases += float_cases("sampling.top_p", sampling, 3, 0, 1, False)
    cases += float_cases("sampling.min_p", sampling, 4, 0, 1, True)
    cases += float_cases("sampling.repetition_penalty", sampling, 6, 0, 10, False, smallest=1e-30)
    cases += float_cases("sampling.presence_penalty", sampling, 7, -2, 2, True)
    cases += float_cases("sampling.frequency_penalty", sampling, 8, -2, 2, True)
    cases += float_cases("sampling.logit_bias", lambda value: sampling(bias(5, value)), 2, -100, 100, True)
    for number in (0, BATCH + 1, 64, 65, UINT32_MAX):
        cases.append((f"n {number}", sampling(integer(11, number)), INVALID, ("sampling.n", str(BATCH), str(number))))
    cases += [
        ("n whose low half is 1", sampling(integer(11, 2**32 + 1)), OK, ()),
        ("n of the batch", sampling(integer(11, BATCH)), OK, ()),
        ("top_k 0", sampling(integer(2, 0)), OK, ()),
        ("top_k of all bits", sampling(integer(2, UINT32_MAX)), OK, ()),
        ("seed of all bits", sampling(integer(5, 2**64 - 1)), OK, ()),
        ("priority low", text() + integer(9, INT32_MIN), OK, ()),
        ("priority high", text() + integer(9, INT32_MAX), OK, ()),
        ("max_tokens 0", data(3, PROMPT) + data(6, integer(1, 0)), INVALID, ("stopping.max_tokens", "1", "0")),
        ("max_tokens 0 with echo", data(3, PROMPT) + data(6, integer(1, 0)) + data(7, integer(5, 1)), OK, ()),
        ("max_tokens 0 with prompt_logprobs", data(3, PROMPT) + data(6, integer(1, 0)) + data(7, integer(3, 0)), OK, ()),
        ("max_tokens 0 with logprobs", data(3, PROMPT) + data(6, integer(1, 0)) + data(7, integer(2, 0)), INVALID,
         ("stopping.max_tokens",)),
        ("max_tokens of all bits", data(3, PROMPT) + data(6, integer(1, UINT32_MAX)), INVALID,
         (str(UINT32_MAX), str(CONTEXT))),
        ("max_tokens of the context", data(3, PROMPT) + data(6, integer(1, CONTEXT)), INVALID, (str(CONTEXT),)),
        ("min_tokens of max_tokens", stopping(integer(2, 2)), OK, ()),
        ("min_tokens and nothing to draw", sampling(packed(10, [END])) + data(6, integer(2, 1)), INVALID,
         ("stopping.min_tokens", "0", "1")),
        ("min_tokens above max_tokens", stopping(integer(2, 3)), INVALID, ("stopping.min_tokens", "2", "3")),
        ("min_tokens of all bits", stopping(integer(2, UINT32_MAX)), INVALID,
         ("stopping.min_tokens", str(UINT32_MAX))),
        ("logprobs 0", output(integer(2, 0)), OK, ()),
        ("logprobs 20", output(integer(2, 20)), OK, ()),
        ("prompt_logprobs 0", output(integer(3, 0)), OK, ()),
        ("prompt_logprobs 20", output(integer(3, 20)), OK, ()),
        ("logprobs 21", output(integer(2, 21)), INVALID, ("output.logprobs", "20", "21")),
        ("logprobs of all bits", output(integer(2, UINT32_MAX)), INVALID, ("output.logprobs", "20", str(UINT32_MAX))),
        ("prompt_logprobs 21", output(integer(3, 21)), INVALID, ("output.prompt_logprobs", "20", "21")),
        ("prompt_logprobs of all bits", output(integer(3, UINT32_MAX)), INVALID,
         ("output.prompt_logprobs", "20", str(UINT32_MAX))),
        ("top_k_blocks of the forced ones", attention(integer(2, FORCED_BLOCKS)), OK, ()),
        ("top_k_blocks of max_top_k_blocks", attention(integer(2, MOST_BLOCKS)), OK, ()),
        ("top_k_blocks below", attention(integer(2, FORCED_BLOCKS - 1)), INVALID,
         ("attention.top_k_blocks", str(FORCED_BLOCKS), str(FORCED_BLOCKS - 1))),
        ("top_k_blocks above", attention(integer(2, MOST_BLOCKS + 1)), INVALID,
         ("attention.top_k_blocks", str(MOST_BLOCKS), str(MOST_BLOCKS + 1))),
        ("top_k_blocks 0", attention(integer(2, 0)), INVALID, ("attention.top_k_blocks", "25", "0")),
        ("top_k_blocks of all bits", attention(integer(2, UINT32_MAX)), INVALID,
         ("attention.top_k_blocks", "25", str(UINT32_MAX))),
    ]
    return cases


def string_cases():
    cases = [
        ("request_id of 128 bytes", text() + data(1, b"x" * 128), OK, ()),
        ("request_id of 129 bytes", text() + data(1, b"x" * 129), INVALID, ("request_id", "128", "129")),
        ("request_id with line ends", text() + data(1, b"a\n\x1b[31m\0"), OK, ()),
        ("cache_salt of 64 bytes", text() + data(10, b"x" * 64), OK, ()),
        ("cache_salt of 65 bytes", text() + data(10, b"x" * 65), INVALID, ("cache_salt", "64", "65")),
        ("another model", text() + data(2, b"other"), NOT_FOUND, ("model", "demo-9m", "other")),
        ("another model in a path", text() + data(2, b"../demo-9m"), NOT_FOUND, ("model", "demo-9m")),
        ("another model of a megabyte", text() + data(2, b"x" * MIB), NOT_FOUND, ("model", "demo-9m")),
        ("no stop", stopping(data(3, b"")), INVALID, ("stopping.stop[0]", "1 to 256", "0")),
        ("a stop of 256 bytes", stopping(data(3, b"x" * 256)), OK, ()),
        ("a stop of 257 bytes", stopping(data(3, b"x" * 257)), INVALID, ("stopping.stop[0]", "256", "257")),
        ("16 stops", stopping(*[data(3, b"x")] * 16), OK, ()),
        ("17 stops", stopping(*[data(3, b"x")] * 17), INVALID, ("stopping.stop", "16", "17")),
        ("text that is NUL", text(b"\0"), OK, ()),
        ("no text", text(b""), INVALID, ("text", "1 byte", "0")),
        ("no prompt", data(6, integer(1, 2)), INVALID, ("prompt", "text or token_ids")),
        ("nothing at all", b"", INVALID, ("prompt",)),
        ("text beyond any context", text(b"x" * (8 * MIB)), INVALID, ("text", str(8 * MIB))),
        ("text beyond the context", text(b"one two " * CONTEXT), INVALID, (str(CONTEXT),)),
    ]
    for name, message in (("request_id", text() + data(1, NOT_UTF8)), ("model", text() + data(2, NOT_UTF8)),
                          ("text", text(NOT_UTF8)), ("cache_salt", text() + data(10, NOT_UTF8)),
                          ("stopping.stop", stopping(data(3, NOT_UTF8)))):
        cases.append((f"{name} that is not UTF-8", message, INVALID, (name, "UTF-8")))
    for label, payload in (("a surrogate", b"\xed\xa0\x80"), ("an overlong slash", b"\xc0\xaf"),
                           ("beyond Unicode", b"\xf4\x90\x80\x80"), ("cut", b"\xf0\x9f\x98")):
        cases.append((f"text with {label}", text(payload), INVALID, ("text", "UTF-8")))
    return cases


def id_cases():
    """Ids outside the vocabulary in every field that takes ids."""
    cases = []
    for value in (VOCABULARY, INT32_MAX, 2**31, UINT32_MAX):
        for name, message in (("token_ids[1]", ids(5, value)),
                              ("sampling.allowed_token_ids[1]", sampling(packed(10, [5, value]))),
                              ("sampling.logit_bias", sampling(bias(value, real(2, 1)))),
                              ("stopping.stop_token_ids[1]", stopping(packed(4, [5, value])))):
            cases.append((f"{name} {value}", message, INVALID, (name, str(VOCABULARY), str(value))))
    last = VOCABULARY - 1
    cases += [
        ("the last id", ids(last), OK, ()),
        ("the last id allowed", sampling(packed(10, [last])), OK, ()),
        ("as many ids allowed as there are", sampling(packed(10, [7] * VOCABULARY)), OK, ()),
        ("an id more allowed", sampling(packed(10, [7] * (VOCABULARY + 1))), INVALID,
         ("sampling.allowed_token_ids", str(VOCABULARY), str(VOCABULARY + 1))),
        ("the last id biased", sampling(bias(last, real(2, 100))), OK, ()),
        ("the last id stops", stopping(packed(4, [last])), OK, ()),
        ("no ids", ids(), INVALID, ("token_ids", "1 id", "0")),
        ("ids beyond the context", ids(*[5] * (CONTEXT + 1)), INVALID, (str(CONTEXT + 1), str(CONTEXT))),
        ("1024 stop ids", stopping(packed(4, [7] * 1024)), OK, ()),
        ("1025 stop ids", stopping(packed(4, [7] * 1025)), INVALID, ("stopping.stop_token_ids", "1024", "1025")),
        ("stop ids one by one", stopping(*[integer(4, 7)] * 100), OK, ()),
    ]
    return cases


def enum_cases():
    cases = []
    for value in (5, 77, INT32_MAX, -1, INT32_MIN):
        cases.append((f"policy {value}", attention(integer(1, value)), INVALID, ("attention.policy", str(value))))
        cases.append((f"prefill_policy {value}", attention(integer(5, value)), INVALID,
                      ("attention.prefill_policy", str(value))))
        cases.append((f"value_mode {value}", attention(integer(4, value)), INVALID,
                      ("attention.value_mode", str(value))))
    cases += [
        ("policy dense", attention(integer(1, 1)), OK, ()),
        ("policy sparse", attention(integer(1, 2)), OK, ()),
        ("policy infinigen", attention(integer(1, 3)), NOT_SERVED, ("attention.policy", "INFINIGEN")),
        ("policy forecast", attention(integer(1, 4)), NOT_SERVED, ("attention.policy", "FORECAST")),
        ("prefill_policy dense", attention(integer(5, 1)), OK, ()),
        ("prefill_policy infinigen", attention(integer(5, 3)), INVALID, ("attention.prefill_policy", "INFINIGEN")),
        ("prefill_policy forecast", attention(integer(5, 4)), NOT_SERVED, ("attention.prefill_policy", "FORECAST")),
        ("value_mode sampled", attention(integer(4, 2)), NOT_SERVED, ("attention.value_mode", "SAMPLED")),
        ("value_samples", attention(integer(3, 1)), NOT_SERVED, ("attention.value_samples",)),
    ]
    return cases


def wire_cases():
    start, end = tag(1000, 3), tag(1000, 4)
    not_parsed = ("CompleteRequest", "do not parse")
    bomb = ("CompleteRequest", "1048576")
    return [
        ("an unknown number", text() + integer(1000, 7), OK, ()),
        ("unknown bytes", text() + data(1001, b"\xff" * 100), OK, ()),
        ("an unknown group", text() + start + integer(5, 1) + start + end + end, OK, ()),
        ("the largest field number", text() + integer(2**29 - 1, 7), OK, ()),
        ("groups 200 deep", text() + start * 200 + end * 200, INVALID, not_parsed),
        ("a group without an end", text() + start, INVALID, not_parsed),
        ("an end without a group", text() + end, INVALID, not_parsed),
        ("field number 0", text() + b"\x00\x01", INVALID, not_parsed),
        ("wire type 7", text() + b"\x0f", INVALID, not_parsed),
        ("a number of 11 bytes", text() + b"\x48" + b"\xff" * 10 + b"\x01", INVALID, not_parsed),
        ("a length beyond the end", text() + b"\x0a\x7f", INVALID, not_parsed),
        ("a length of 2^63", text() + b"\x0a" + varint(2**63), INVALID, not_parsed),
        ("text as a number", integer(3, 5), INVALID, ("prompt",)),
        ("sampling as a number", text() + integer(5, 5), OK, ()),
        ("both prompts, ids last", data(3, PROMPT) + ids(5), OK, ()),
        ("both prompts, text last", ids(VOCABULARY) + data(3, PROMPT), OK, ()),
        ("a field twice, the last counts", sampling(real(1, -1), real(1, 0)), OK, ()),
        ("sampling twice, merged", sampling(real(1, -1)) + data(5, real(1, 0.5)), OK, ()),
        ("a key twice in a map", sampling(bias(5, real(2, 1000)), bias(5, real(2, 1))), OK, ()),
        ("two million empty stops", stopping(b"\x1a\x00" * (2 * MIB)), INVALID, bomb),
        ("two million empty biases", sampling(b"\x4a\x00" * (2 * MIB)), INVALID, bomb),
        ("two million unknown fields", text() + b"\xf8\x7f\x00" * (2 * MIB), INVALID, bomb),
        ("two million unknown groups", text() + (start + end) * (2 * MIB), INVALID, bomb),
        ("two million empty options", text() + b"\x3a\x00" * (2 * MIB), INVALID, bomb),
        ("two million ids one by one", data(4, b"\x08\x01" * (2 * MIB)), INVALID, bomb),
        ("five million ids", data(4, data(1, b"\x01" * (5 * MIB))), INVALID, ("CompleteRequest", "4194304")),
    ]


class HostileCase(unittest.TestCase):
    """A daemon, the neighbour and the canary."""

    ARGUMENTS = ()
    MODEL = None

    @classmethod
    def setUpClass(cls):
        cls.daemon = support.Daemon(*cls.ARGUMENTS, model=cls.MODEL)
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_send_message_length", -1),
                   ("grpc.use_local_subchannel_pool", 1)]
        cls.channel = grpc.insecure_channel(cls.daemon.address, options=options)
        cls.quiet_channel = grpc.insecure_channel(cls.daemon.address, options=options)
        cls.canary_stub = rpc.CompletionsStub(cls.quiet_channel)
        cls.canary = pb.CompleteRequest(token_ids=pb.TokenIds(ids=[0, 33, 400, 71, 387]), output=pb.OutputOptions(token_ids=True),
                                        sampling=pb.SamplingParams(temperature=0.8, seed=11),
                                        stopping=pb.StoppingCriteria(max_tokens=6, ignore_eos=True),
                                        bypass_prefix_cache=True)
        cls.neighbour = pb.CompleteRequest()
        cls.neighbour.CopyFrom(cls.canary)
        cls.neighbour.stopping.max_tokens = 400
        cls.canary_alone = cls.tokens(cls.canary)
        cls.neighbour_alone = cls.tokens(cls.neighbour)
        assert len(cls.neighbour_alone) == 400

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.quiet_channel.close()
        status = cls.daemon.terminate()
        cls.daemon.kill()
        assert status == 0, status

    @classmethod
    def tokens(cls, request):
        return [token for message in cls.canary_stub.Complete(request) for token in message.chunk.token_ids]

    def setUp(self):
        self.over = threading.Event()
        self.neighbours = []
        self.thread = threading.Thread(target=self.run_neighbours)
        self.thread.start()

    def tearDown(self):
        self.over.set()
        self.thread.join()
        self.assertTrue(self.neighbours)
        for tokens in self.neighbours:
            self.assertEqual(tokens, self.neighbour_alone)
        self.assertEqual(self.tokens(self.canary), self.canary_alone)
        self.assertTrue(support.eventually(
            lambda: self.daemon.metric('augur_kv_blocks{model_name="demo-9m",state="held"}') == 0))

    def run_neighbours(self):
        while not self.over.is_set():
            self.neighbours.append(self.tokens(self.neighbour))

    def call(self, message, method="Complete"):
        """Status and message of one call of raw bytes."""
        path = f"/augur.v1.Completions/{method}"
        try:
            if method == "Complete":
                list(self.channel.unary_stream(path)(message, timeout=CALL_LIMIT_S))
            else:
                self.channel.unary_unary(path)(message, timeout=CALL_LIMIT_S)
        except grpc.RpcError as error:
            return error.code(), error.details()
        return OK, ""

    def check(self, cases, method="Complete"):
        for name, message, code, words in cases:
            with self.subTest(name):
                found, details = self.call(message, method)
                self.assertEqual(found, code, details)
                for word in words:
                    self.assertIn(word, details)
                self.assertLessEqual(len(details.encode()), 1024)
                self.assertTrue(details.isprintable(), details)
                self.assertEqual(self.tokens(self.canary), self.canary_alone)


class HostileRequestTest(HostileCase):
    def test_ranges(self):
        self.check(range_cases())

    def test_strings(self):
        self.check(string_cases())

    def test_ids(self):
        self.check(id_cases())

    def test_enums(self):
        self.check(enum_cases())

    def test_wire(self):
        self.check(wire_cases())

    def test_text_calls(self):
        self.check([("text", data(1, b"abc"), OK, ()), ("empty", b"", OK, ()),
                    ("not UTF-8", data(1, NOT_UTF8), INVALID, ("text", "UTF-8")),
                    ("beyond 4 MiB", data(1, b"x" * (4 * MIB + 1)), INVALID, ("text", str(4 * MIB))),
                    ("bomb", b"\x10\x01" * (2 * MIB), INVALID, ("1048576",)),
                    ("malformed", b"\xff\xff", INVALID, ("TokenizeRequest",))], "Tokenize")
        self.check([("ids", packed(1, [5, 6]), OK, ()), ("empty", b"", OK, ()),
                    ("beyond the vocabulary", packed(1, [5, VOCABULARY]), INVALID, ("ids[1]", str(VOCABULARY))),
                    ("of all bits", packed(1, [UINT32_MAX]), INVALID, ("ids[0]", str(UINT32_MAX))),
                    ("too many", packed(1, [5] * (MIB + 1)), INVALID, ("ids", str(MIB), str(MIB + 1))),
                    ("malformed", b"\x0a\x05\x01", INVALID, ("DetokenizeRequest",))], "Detokenize")

    def test_every_beginning_of_a_message(self):
        whole = sampling(real(1, 0.5), bias(5, real(2, 1)), integer(11, 2)) + data(1, b"label") + attention(
            integer(1, 2)) + output(integer(1, 1)) + stopping(data(3, b"zz"), packed(4, [7, 8]))
        for length in range(len(whole) + 1):
            code, details = self.call(whole[:length])
            self.assertIn(code, (OK, INVALID), details)

    def test_random_bytes(self):
        generator = random.Random(5)
        whole = bytearray(sampling(real(1, 0.5), bias(5, real(2, 1))) + stopping(data(3, b"zz"), packed(4, [7, 8])))
        for _ in range(300):
            changed = bytearray(whole)
            for _ in range(generator.randint(1, 4)):
                changed[generator.randrange(len(changed))] = generator.randrange(256)
            code, details = self.call(bytes(changed))
            self.assertIn(code, (OK, INVALID, NOT_FOUND, NOT_SERVED), details)

    def test_a_message_of_64_mebibytes_of_empty_fields_costs_a_bounded_amount(self):
        def peak_mib():
            status = pathlib.Path(f"/proc/{self.daemon.process.pid}/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) / 1024

        before = peak_mib()
        fields = (64 * MIB - 64) // 2
        self.check([("stops", data(3, PROMPT) + data(6, b"\x1a\x00" * fields), INVALID, ("1048576",))])
        # gRPC has the message twice at most; parsed, it would take 2 GiB.
        self.assertLess(peak_mib() - before, 3 * 64)


class SampledValuesTest(HostileCase):
    ARGUMENTS = ("--set", "attention.values.override=true", "--set", f"attention.values.max_samples={MOST_SAMPLES}")

    def test_samples(self):
        def sampled(number):
            return attention(integer(4, 2), integer(3, number))

        field = ("attention.value_samples", str(MOST_SAMPLES))
        self.check([("sampled", attention(integer(4, 2)), OK, ()),
                    ("exact", attention(integer(4, 1)), OK, ()),
                    ("one sample", sampled(1), OK, ()),
                    ("the most samples", sampled(MOST_SAMPLES), OK, ()),
                    ("no sample", sampled(0), INVALID, field + ("0",)),
                    ("a sample more", sampled(MOST_SAMPLES + 1), INVALID, field + (str(MOST_SAMPLES + 1),)),
                    ("samples of all bits", sampled(UINT32_MAX), INVALID, field + (str(UINT32_MAX),)),
                    ("samples of exact values", attention(integer(3, 64)), INVALID,
                     ("attention.value_samples", "VALUE_MODE_SAMPLED", "exact"))])


class FixedPoliciesTest(HostileCase):
    ARGUMENTS = ("--set", "policy_override=false")

    def test_only_the_deployments_own(self):
        self.check([("dense", attention(integer(1, 1)), OK, ()),
                    ("sparse", attention(integer(1, 2)), NOT_SERVED, ("attention.policy", "SPARSE")),
                    ("prompts sparse", attention(integer(5, 2)), NOT_SERVED, ("attention.prefill_policy", "SPARSE")),
                    ("blocks", attention(integer(2, MOST_BLOCKS)), NOT_SERVED, ("attention.top_k_blocks",))])


class WithoutTokenizerTest(HostileCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="augur-test-")
        cls.MODEL = f"{cls.folder.name}/demo-9m"
        shutil.copytree(support.settings.model, cls.MODEL, symlinks=True,
                        ignore=shutil.ignore_patterns("tokenizer*"))
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def test_only_ids(self):
        self.check([("ids", ids(5), OK, ()), ("text", text(), NOT_SERVED, ("text", "tokenizer")),
                    ("a stop", ids(5) + data(6, data(3, b"x")), NOT_SERVED, ("stopping.stop", "tokenizer")),
                    ("an id beyond", ids(VOCABULARY), INVALID, ("token_ids[0]", str(VOCABULARY)))])
        self.check([("text", data(1, b"abc"), NOT_SERVED, ("tokenizer",))], "Tokenize")
        self.check([("ids", packed(1, [5]), NOT_SERVED, ("tokenizer",))], "Detokenize")


if __name__ == "__main__":
    unittest.main()
