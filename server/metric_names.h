// Every metric that augurd exports, in one list: own names in base units, and the five names of
// vLLM that load-aware routers read, verbatim. server/README.md says what each means.
#pragma once

namespace augur::server::metric_names {

inline constexpr char kBuildInfo[] = "augur_build_info";  // {version}
inline constexpr char kReady[] = "augur_ready";
inline constexpr char kRequests[] = "augur_requests_total";       // {code,finish_reason}
inline constexpr char kUnaryCalls[] = "augur_unary_calls_total";  // {method,code}
inline constexpr char kRefusedConnections[] = "augur_refused_connections_total";
inline constexpr char kOpenStreams[] = "augur_open_streams";
inline constexpr char kReaderPauses[] = "augur_reader_pauses_total";
inline constexpr char kIntakeRequests[] = "augur_intake_requests";
inline constexpr char kIntakeBytes[] = "augur_intake_bytes";

inline constexpr char kAccepted[] = "augur_accepted_requests_total";
inline constexpr char kEngineEnds[] = "augur_engine_requests_total";  // {outcome}
inline constexpr char kQueueRequests[] = "augur_queue_requests";
inline constexpr char kQueueTokens[] = "augur_queue_tokens";
inline constexpr char kRunningRequests[] = "augur_running_requests";
inline constexpr char kPausedRequests[] = "augur_paused_requests";
inline constexpr char kPreemptions[] = "augur_preemptions_total";
inline constexpr char kRecomputedTokens[] = "augur_recomputed_tokens_total";

inline constexpr char kPromptTokens[] = "augur_prompt_tokens_total";
inline constexpr char kCachedTokens[] = "augur_cached_tokens_total";
inline constexpr char kGeneratedTokens[] = "augur_generated_tokens_total";
inline constexpr char kPrefixQueryBlocks[] = "augur_prefix_query_blocks_total";
inline constexpr char kPrefixHitBlocks[] = "augur_prefix_hit_blocks_total";

inline constexpr char kKvBlocks[] = "augur_kv_blocks";  // {state}
inline constexpr char kKvCapacityTokens[] = "augur_kv_capacity_tokens";
inline constexpr char kKvCapacityBytes[] = "augur_kv_capacity_bytes";
inline constexpr char kContextTokens[] = "augur_context_tokens";

inline constexpr char kSavedRequests[] = "augur_saved_requests_total";
inline constexpr char kWarmingRequests[] = "augur_warming_requests";
inline constexpr char kWarmUpSeconds[] = "augur_warm_up_seconds";

inline constexpr char kTransferWait[] = "augur_transfer_wait_seconds";    // {cause}
inline constexpr char kTransferBytes[] = "augur_transfer_bytes_total";    // {direction,kind}
inline constexpr char kTransferCopies[] = "augur_transfer_copies_total";  // {direction,kind}
inline constexpr char kTransferQueue[] = "augur_transfer_queued_copies";
inline constexpr char kTransferOldest[] = "augur_transfer_oldest_queued_seconds";
inline constexpr char kTransferCtas[] = "augur_transfer_ctas";            // {state}
inline constexpr char kCtaSeconds[] = "augur_cta_seconds_total";          // {role}
inline constexpr char kPrefetchBlocks[] = "augur_prefetch_blocks_total";  // {result}
inline constexpr char kKvSlots[] = "augur_kv_slots";                      // {tier,state}
inline constexpr char kKvChosen[] = "augur_kv_chosen_blocks_total";
inline constexpr char kKvReused[] = "augur_kv_reused_blocks_total";
inline constexpr char kKvResident[] = "augur_kv_resident_blocks_total";  // {since}
inline constexpr char kKvStackDistance[] = "augur_kv_stack_distance_blocks";
inline constexpr char kForecastRecall[] = "augur_forecast_recall_blocks_total";  // {result}
inline constexpr char kCheckedPages[] = "augur_checked_pages_total";
inline constexpr char kLayerWait[] = "augur_layer_wait_seconds_total";       // {layer}
inline constexpr char kLayerChosen[] = "augur_layer_chosen_blocks_total";    // {layer}
inline constexpr char kLayerReused[] = "augur_layer_reused_blocks_total";    // {layer}
inline constexpr char kLayerFetched[] = "augur_layer_fetched_blocks_total";  // {layer}

inline constexpr char kSampledDraws[] = "augur_sampled_draws_total";
inline constexpr char kSampledRows[] = "augur_sampled_rows_total";  // {distinct_for}
inline constexpr char kSampledHostRows[] = "augur_sampled_host_rows_total";
inline constexpr char kSampledFeatures[] = "augur_sampled_features_total";
inline constexpr char kDecodeBytes[] = "augur_decode_fetched_bytes_total";  // {kind}

inline constexpr char kSteps[] = "augur_steps_total";
inline constexpr char kStepSeconds[] = "augur_step_seconds";
inline constexpr char kStepHostSeconds[] = "augur_step_host_seconds";
inline constexpr char kBatchSize[] = "augur_batch_size";
inline constexpr char kStepTokens[] = "augur_step_tokens";

inline constexpr char kQueueSeconds[] = "augur_queue_seconds";
inline constexpr char kTimeToFirstToken[] = "augur_time_to_first_token_seconds";
inline constexpr char kInterToken[] = "augur_inter_token_seconds";
inline constexpr char kRequestSeconds[] = "augur_request_seconds";
inline constexpr char kRequestPromptTokens[] = "augur_request_prompt_tokens";
inline constexpr char kRequestGeneratedTokens[] = "augur_request_generated_tokens";

inline constexpr char kVllmRunning[] = "vllm:num_requests_running";
inline constexpr char kVllmWaiting[] = "vllm:num_requests_waiting";
inline constexpr char kVllmKvUsage[] = "vllm:kv_cache_usage_perc";
inline constexpr char kVllmCacheConfig[] = "vllm:cache_config_info";  // {block_size,num_gpu_blocks}
inline constexpr char kVllmLora[] = "vllm:lora_requests_info";

}  // namespace augur::server::metric_names
