// The table of the ISA that includes this, last.
#pragma once

#include "kernels/cpu/isa/attention_body.h"
#include "kernels/cpu/isa/attention_lists_body.h"
#include "kernels/cpu/isa/compress_body.h"
#include "kernels/cpu/isa/convert_body.h"
#include "kernels/cpu/isa/elementwise_body.h"
#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/cpu/isa/linear_body.h"
#include "kernels/cpu/isa/probe_body.h"
#include "kernels/cpu/isa/sampled_body.h"
#include "kernels/cpu/isa/select_body.h"

namespace augur::kernels::AUGUR_ISA {
namespace {

#define AUGUR_NAME_OF(isa) #isa
#define AUGUR_EXPANDED_NAME_OF(isa) AUGUR_NAME_OF(isa)

constexpr IsaKernels kKernels = {
    .name = AUGUR_EXPANDED_NAME_OF(AUGUR_ISA),
    .panel_columns = kPanelColumns,
    .linear = MultiplyBlock,
    .attend = AttendSpan,
    .attend_lists = AttendLists,
    .merge_partials = MergePartials,
    .compress_window = CompressWindow,
    .score_blocks = ScoreBlocks,
    .score_entries = ScoreEntries,
    .tile_max = TileMax,
    .tile_weights = TileWeights,
    .shared_rates = SharedRates,
    .gather_values = GatherValues,
    .add_value_rows = AddValueRows,
    .rms_norm = RmsNormRow,
    .gated_silu = GatedSiluRow,
    .rotate = RotateHead,
    .widen = WidenRow,
    .narrow = NarrowRow,
    .max_or_nan = MaxOrNan,
    .softmax_weights = SoftmaxWeights,
    .fma_rounds = FmaRounds,
    .read_floats = ReadFloats,
};

}  // namespace
}  // namespace augur::kernels::AUGUR_ISA
