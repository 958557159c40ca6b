// The matrix product: tiles of rows x panels with every sum in a register, each one chain of Fma
// over the inputs in ascending order. So the bits of an output depend on nothing but its row, its
// weights, bias and old value: not on the tile, the rows beside it, the thread or the ISA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/cpu/isa/vector.h"

namespace augur::kernels::AUGUR_ISA {
namespace {

constexpr int kPanelColumns = 2 * kLanes;
// 24 of 32 registers hold sums under AVX-512, 12 of 16 under AVX2: what is left holds weights and
// x. The generic kernels call fmaf for every lane, so tiles bring them nothing but code.
constexpr int kMaxSums = kLanes == 16 ? 24 : kLanes == 8 ? 12 : 4;
constexpr int kMaxTileRows = kMaxSums / 2;

// Few rows have few sums and would wait for each Fma (4 cycles): then several panels go at once.
constexpr int PanelsAtOnce(int rows) { return kMaxTileRows / rows > 4 ? 4 : kMaxTileRows / rows; }

template <class Element>
AUGUR_INLINE void LoadColumns(const Element* panel_row, Floats (&columns)[2]);

template <>
AUGUR_INLINE void LoadColumns(const float* panel_row, Floats (&columns)[2]) {
  columns[0] = Load(panel_row);
  columns[1] = Load(panel_row + kLanes);
}
// Shift and mask, no shuffles: __builtin_convertvector made one row 2.2 times slower
// (build.md 6.1).
template <>
AUGUR_INLINE void LoadColumns(const uint16_t* panel_row, Floats (&columns)[2]) {
  const Words pairs = LoadWords(panel_row);
  columns[0] = AsFloats(pairs << 16);
  columns[1] = AsFloats(pairs & 0xffff0000u);
}

// Panel rows that are asked for before they are multiplied: 2 KiB of bf16, some 300 cycles.
constexpr int kRowsAhead = 32;

// A tile's weights, and what to ask memory for meanwhile.
template <class Element>
struct TilePanels {
  const Element* panel;
  size_t panel_stride;     // elements between panels
  const std::byte* ahead;  // for the first input
  size_t ahead_step;       // bytes, for each further input
};

// sums[row][panel][columns] (+)= x[row] * panel over `depth` inputs.
template <int kRows, int kPanels, class Element>
void MultiplyTile(const float* x, size_t x_stride, const TilePanels<Element>& panels, int depth,
                  bool first, float* sums) {
  const Element* panel = panels.panel;
  const std::byte* ahead = panels.ahead;
  constexpr int kVectors = 2 * kPanels;
  Floats sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sum[row][v] = first ? Floats{} : Load(sums + (row * kVectors + v) * kLanes);
    }
  }
  for (int i = 0; i < depth; ++i) {
    Floats columns[kPanels][2];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      LoadColumns(panel + p * panels.panel_stride, columns[p]);
      __builtin_prefetch(ahead + p * panels.panel_stride * sizeof(Element));
    }
    panel += kPanelColumns;
    ahead += panels.ahead_step;
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const Floats input = Splat(x[row * x_stride + i]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sum[row][v] = Fma(columns[v / 2][v % 2], input, sum[row][v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) Store(sums + (row * kVectors + v) * kLanes, sum[row][v]);
  }
}

template <class Element>
using TileFunction = void (*)(const float*, size_t, const TilePanels<Element>&, int, bool, float*);

template <class Element, int kRows, int kPanels>
constexpr TileFunction<Element> TileOrNull() {
  if constexpr (kPanels <= PanelsAtOnce(kRows) && kRows <= kMaxTileRows) {
    return &MultiplyTile<kRows, kPanels, Element>;
  } else {
    return nullptr;
  }
}

template <class Element>
struct TileTable {
  TileFunction<Element> of[kMaxTileRows + 1][5];
};

template <class Element, int kRows>
constexpr void FillTiles(TileTable<Element>& table) {
  table.of[kRows][1] = TileOrNull<Element, kRows, 1>();
  table.of[kRows][2] = TileOrNull<Element, kRows, 2>();
  table.of[kRows][3] = TileOrNull<Element, kRows, 3>();
  table.of[kRows][4] = TileOrNull<Element, kRows, 4>();
  if constexpr (kRows > 1) FillTiles<Element, kRows - 1>(table);
}

template <class Element>
constexpr TileTable<Element> MakeTiles() {
  TileTable<Element> table{};
  FillTiles<Element, kMaxTileRows>(table);
  return table;
}

template <class Element>
constexpr TileTable<Element> kTiles = MakeTiles<Element>();

// sums [rows][panels * kPanelColumns] -> y, with bias and the old y. Columns beyond y's are
// dropped.
void FinishRows(const LinearBlock& block, const float* sums, int row_begin, int rows,
                int column_begin, int panels) {
  const int width = panels * kPanelColumns;
  const int columns = block.columns - column_begin < width ? block.columns - column_begin : width;
  const float* bias = block.bias == nullptr ? nullptr : block.bias + column_begin;
  for (int row = 0; row < rows; ++row) {
    const float* sum = sums + row * width;
    float* y = block.y + (row_begin + row) * block.y_stride + column_begin;
    int c = 0;
    for (; c + kLanes <= columns; c += kLanes) {
      Floats value = Load(sum + c);
      if (bias != nullptr) value += Load(bias + c);
      if (block.accumulate) value += Load(y + c);
      Store(y + c, value);
    }
    for (; c < columns; ++c) {
      float value = sum[c];
      if (bias != nullptr) value += bias[c];
      if (block.accumulate) value += y[c];
      y[c] = value;
    }
  }
}

// Rows that fit one tile: the panels are read once, as they lie.
template <class Element>
void MultiplyFewRows(const LinearBlock& block) {
  const size_t panel_stride = size_t(block.in_features) * kPanelColumns;
  const Element* panel = static_cast<const Element*>(block.panels);
  const int num_panels = (block.columns + kPanelColumns - 1) / kPanelColumns;
  const int at_once = PanelsAtOnce(block.rows);
  for (int p = 0; p < num_panels;) {
    const int panels = num_panels - p < at_once ? num_panels - p : at_once;
    const Element* first = panel + p * panel_stride;
    const auto* ahead = reinterpret_cast<const std::byte*>(first + kRowsAhead * kPanelColumns);
    kTiles<Element>.of[block.rows][panels](
        block.x, block.x_stride, {first, panel_stride, ahead, kPanelColumns * sizeof(Element)},
        block.in_features, true, block.scratch);
    FinishRows(block, block.scratch, 0, block.rows, p * kPanelColumns, panels);
    p += panels;
  }
}

void WidenPanel(const uint16_t* panel, int depth, float* out) {
  for (int i = 0; i < depth; ++i) {
    Floats columns[2];
    LoadColumns(panel + i * kPanelColumns, columns);
    Store(out + i * kPanelColumns, columns[0]);
    Store(out + i * kPanelColumns + kLanes, columns[1]);
  }
}

// More rows: a panel is taken in pieces of kLinearDepth inputs that stay in the first-level cache
// for all tiles; bf16 is widened once a piece, so that the tiles' ports do nothing but multiply.
template <class Element>
void MultiplyManyRows(const LinearBlock& block) {
  float* widened = block.scratch;
  float* sums = block.scratch + kLinearDepth * kMaxPanelColumns;
  const Element* panel = static_cast<const Element*>(block.panels);
  const int num_tiles = (block.rows + kMaxTileRows - 1) / kMaxTileRows;
  for (int column = 0; column < block.columns; column += kPanelColumns) {
    for (int begin = 0; begin < block.in_features; begin += kLinearDepth) {
      const int left = block.in_features - begin;
      const int depth = left < kLinearDepth ? left : kLinearDepth;
      const Element* raw = panel + size_t(begin) * kPanelColumns;
      TilePanels<float> piece{};
      if constexpr (sizeof(Element) == 2) {
        WidenPanel(raw, depth, widened);
        piece.panel = widened;
      } else {
        piece.panel = raw;
      }
      // The next piece comes from memory while this one is multiplied: 16 rows of 4096 x 4096 went
      // from 47 to 80 GFLOP/s.
      piece.ahead = reinterpret_cast<const std::byte*>(raw + depth * kPanelColumns);
      piece.ahead_step = kPanelColumns * sizeof(Element);
      for (int tile = 0; tile < num_tiles; ++tile) {  // of nearly equal height: 16 rows are 8 + 8
        const int row = tile * block.rows / num_tiles;
        const int rows = (tile + 1) * block.rows / num_tiles - row;
        kTiles<float>.of[rows][1](block.x + row * block.x_stride + begin, block.x_stride, piece,
                                  depth, begin == 0, sums + row * kPanelColumns);
      }
    }
    FinishRows(block, sums, 0, block.rows, column, 1);
    panel += size_t(block.in_features) * kPanelColumns;
  }
}

void MultiplyBlock(const LinearBlock& block) {
  const bool few = block.rows <= kMaxTileRows;
  if (block.is_bf16) {
    few ? MultiplyFewRows<uint16_t>(block) : MultiplyManyRows<uint16_t>(block);
  } else {
    few ? MultiplyFewRows<float>(block) : MultiplyManyRows<float>(block);
  }
}

}  // namespace
}  // namespace augur::kernels::AUGUR_ISA
