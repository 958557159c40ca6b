"""A Python client with stubs made from the proto: calls, statuses, health, reflection."""

import pathlib
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import daemon as support  # noqa: E402  (the path is set above)

support.parse_settings()

import grpc  # noqa: E402
from augur.v1 import completions_pb2 as pb  # noqa: E402
from augur.v1 import completions_pb2_grpc as rpc  # noqa: E402
from grpc.health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from grpc.reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # noqa: E402

PROMPT = "The configuration file consists of lines with a key and a value."


def greedy(text, max_tokens, **fields):
    return pb.CompleteRequest(text=text, sampling=pb.SamplingParams(temperature=0),
                              stopping=pb.StoppingCriteria(max_tokens=max_tokens, ignore_eos=True), **fields)


class PythonClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = support.Daemon()
        cls.channel = grpc.insecure_channel(cls.daemon.address, options=[("grpc.enable_http_proxy", 0)])
        cls.stub = rpc.CompletionsStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        status = cls.daemon.terminate()
        cls.daemon.kill()
        assert status == 0, status

    def complete(self, request, **options):
        return list(self.stub.Complete(request, **options))

    def text(self, request):
        return "".join(message.chunk.text for message in self.complete(request))

    def test_order_of_a_stream(self):
        request = greedy(PROMPT * 60, 8, output=pb.OutputOptions(progress=True), bypass_prefix_cache=True)
        kinds = [message.WhichOneof("event") for message in self.complete(request)]
        self.assertEqual(kinds[0], "accepted")
        self.assertEqual(kinds[-1], "finished")
        middle = kinds[1:-1]
        self.assertGreaterEqual(middle.count("progress"), 2)
        self.assertEqual(middle, ["progress"] * middle.count("progress") + ["chunk"] * middle.count("chunk"))

    def test_text_that_is_not_utf8(self):
        raw = self.channel.unary_stream("/augur.v1.Completions/Complete", request_serializer=None,
                                        response_deserializer=pb.CompleteResponse.FromString)
        message = b"\x1a\x03a\xffb"  # field 3, text
        with self.assertRaises(grpc.RpcError) as refusal:
            list(raw(message))
        self.assertEqual(refusal.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("text", refusal.exception.details())
        with self.assertRaises(grpc.RpcError) as refusal:
            list(raw(b"\xff\xff\xff"))
        self.assertEqual(refusal.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    def test_unbuilt_field(self):
        with self.assertRaises(grpc.RpcError) as refusal:
            self.complete(pb.CompleteRequest(text=PROMPT, 
                                               attention=pb.AttentionOptions(policy=pb.ATTENTION_POLICY_FORECAST)))
        self.assertEqual(refusal.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        self.assertIn("attention.policy", refusal.exception.details())

    def test_special_tokens_of_a_prompt(self):
        def prompt_tokens(**fields):
            return self.complete(pb.CompleteRequest(text="<|end|>", **fields))[0].accepted.prompt_tokens

        self.assertEqual(prompt_tokens(), 2)  # the begin token and the one that is spelled out
        self.assertEqual(prompt_tokens(add_special_tokens=False), 1)
        self.assertGreater(prompt_tokens(parse_special=False), 3)

    def test_special_tokens_of_an_answer(self):
        end = 1  # <|end|>, which ends a sequence
        request = pb.CompleteRequest(text=PROMPT, stopping=pb.StoppingCriteria(max_tokens=3),
                                     sampling=pb.SamplingParams(temperature=0, logit_bias={end: 100}))
        finished = self.complete(request)[-1].finished
        self.assertEqual((finished.finish_reason, finished.stop_token_id, finished.usage.completion_tokens),
                         (pb.FINISH_REASON_EOS, end, 1))
        request.stopping.ignore_eos = True
        self.assertEqual(self.text(request), "")
        self.assertEqual(self.complete(request)[-1].finished.finish_reason, pb.FINISH_REASON_LENGTH)
        request.output.skip_special_tokens = False
        self.assertEqual(self.text(request), "<|end|>" * 3)
        request.stopping.stop_token_ids.append(end)
        finished = self.complete(request)[-1].finished
        self.assertEqual((finished.finish_reason, finished.stop_token_id), (pb.FINISH_REASON_STOP, end))

    def test_timings_add_up(self):
        timings = self.complete(greedy(PROMPT, 20))[-1].finished.timings
        self.assertAlmostEqual(timings.queue_ms + timings.prefill_ms, timings.first_token_ms, places=6)
        self.assertAlmostEqual(timings.first_token_ms + timings.decode_ms, timings.total_ms, places=6)
        self.assertAlmostEqual(timings.mean_inter_token_ms * 19, timings.decode_ms, places=6)
        self.assertGreater(timings.prefill_ms, 0)

    def test_request_ids_are_labels(self):
        ids = [self.complete(greedy(PROMPT, 1, request_id=label))[0].accepted.request_id
               for label in ("same", "same", "sam", "", "")]
        self.assertEqual(ids[:3], ["same", "same", "sam"])
        self.assertTrue(ids[3] and ids[4] and ids[3] != ids[4])

    def test_deadline(self):
        with self.assertRaises(grpc.RpcError) as end:
            self.complete(greedy(PROMPT, 8000), timeout=0.2)
        self.assertEqual(end.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)

    def test_cancel_frees(self):
        call = self.stub.Complete(greedy(PROMPT, 8000))
        for _ in range(5):
            next(call)
        call.cancel()
        self.assertTrue(support.eventually(lambda: self.daemon.metric("augur_open_streams") == 0))
        self.assertTrue(support.eventually(
            lambda: self.daemon.metric('augur_kv_blocks{model_name="demo-9m",state="held"}') == 0))

    def test_alone_and_together(self):
        prompts = [PROMPT + " Number %d." % number for number in range(16)]
        alone = [self.text(greedy(prompt, 30)) for prompt in prompts]
        together = [None] * len(prompts)

        def ask(index):
            together[index] = self.text(greedy(prompts[index], 30, bypass_prefix_cache=True))

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(together, alone)

    def test_tokenize_and_back(self):
        text = "Größe: 42 \U0001f600 <|end|>"
        tokens = self.stub.Tokenize(pb.TokenizeRequest(text=text, add_special_tokens=False, parse_special=False))
        self.assertEqual(b"".join(tokens.tokens).decode(), text)
        self.assertEqual(self.stub.Detokenize(pb.DetokenizeRequest(ids=tokens.ids)).text, text)
        self.assertEqual(tokens.max_context, 8192)
        special = self.stub.Tokenize(pb.TokenizeRequest(text="<|end|>"))
        self.assertEqual(list(special.ids), [0, 1])

    def test_get_model(self):
        model = self.stub.GetModel(pb.GetModelRequest())
        self.assertEqual((model.model, model.family, model.vocab_size, model.max_context),
                         ("demo-9m", "llama", 4096, 8192))
        self.assertTrue(model.text)
        self.assertEqual(list(model.policies), [pb.ATTENTION_POLICY_DENSE, pb.ATTENTION_POLICY_SPARSE])

    def test_health(self):
        health = health_pb2_grpc.HealthStub(self.channel)
        for service in ("", "augur.v1.Completions", "live"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service))
            self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING, service)

    def test_reflection_lists_the_services(self):
        reflection = reflection_pb2_grpc.ServerReflectionStub(self.channel)
        requests = [reflection_pb2.ServerReflectionRequest(list_services=""),
                    reflection_pb2.ServerReflectionRequest(file_containing_symbol="augur.v1.Completions")]
        listed, described = reflection.ServerReflectionInfo(iter(requests))
        names = {service.name for service in listed.list_services_response.service}
        self.assertLessEqual({"augur.v1.Completions", "grpc.health.v1.Health"}, names)
        self.assertIn(b"CompleteRequest", described.file_descriptor_response.file_descriptor_proto[0])

    def test_reflection_can_be_closed(self):
        with support.Daemon("--no-reflection") as daemon, \
                grpc.insecure_channel(daemon.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
            with self.assertRaises(grpc.RpcError) as refusal:
                list(reflection.ServerReflectionInfo(
                    iter([reflection_pb2.ServerReflectionRequest(list_services="")])))
            self.assertEqual(refusal.exception.code(), grpc.StatusCode.UNIMPLEMENTED)

    def test_the_example_of_the_api_page(self):
        page = (pathlib.Path(support.settings.source) / "proto" / "README.md").read_text()
        example = page.split("```python\n")[1].split("```")[0]
        self.assertEqual(example.count("127.0.0.1:50051"), 1)
        self.assertEqual(example.count('"stubs"'), 1)
        example = example.replace("127.0.0.1:50051", self.daemon.address)
        example = example.replace('"stubs"', repr(support.settings.stubs))
        result = support.run([sys.executable, "-B", "-c", example])
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertRegex(lines[0], r"^prompt tokens: \d+ seed: 7$")
        self.assertEqual(len(lines), 3, result.stdout)
        self.assertEqual({line.split()[0] for line in lines[1:]}, {"0", "1"})

    def test_the_api_page_names_every_field(self):
        page = (pathlib.Path(support.settings.source) / "proto" / "README.md").read_text()

        def expect(message, prefix):
            for field in message.fields:
                self.assertIn(f"`{prefix}{field.name}`", page)
                nested = field.message_type
                if nested is not None and not nested.GetOptions().map_entry:
                    expect(nested, f"{field.name}.")

        expect(pb.CompleteRequest.DESCRIPTOR, "")
        for other in (pb.TokenizeRequest, pb.DetokenizeRequest, pb.GetModelRequest):
            expect(other.DESCRIPTOR, f"{other.DESCRIPTOR.name}.")

    def test_the_api_page_names_every_field_that_comes_back(self):
        page = (pathlib.Path(support.settings.source) / "proto" / "README.md").read_text()
        told = page.split("## What comes back")[1].split("\n## ")[0]
        rows = {row.split("`")[1]: row for row in told.splitlines() if row.startswith("| `")}
        seen = set()

        def expect(message, row):
            seen.add(message.name)
            for field in message.fields:
                self.assertIn(f"`{field.name}`", row, message.name)
                if field.message_type is not None and field.message_type.name not in seen:
                    expect(field.message_type, rows[field.message_type.name])

        expect(pb.CompleteResponse.DESCRIPTOR, told.split("\n|")[0])
        for other in (pb.TokenizeResponse, pb.DetokenizeResponse, pb.GetModelResponse):
            expect(other.DESCRIPTOR, rows[other.DESCRIPTOR.name])
        self.assertEqual(set(rows) - seen, set())

    def test_metrics_page(self):
        page = self.daemon.metrics()
        for name in ("augur_requests_total{", "augur_time_to_first_token_seconds_bucket{", "augur_kv_blocks{",
                     "vllm:num_requests_running{", "vllm:num_requests_waiting{", "vllm:kv_cache_usage_perc{",
                     "vllm:cache_config_info{", "vllm:lora_requests_info{"):
            self.assertIn("\n" + name, page)
        self.assertIn('engine="0"', page)


if __name__ == "__main__":
    unittest.main()
