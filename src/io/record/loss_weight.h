#pragma once

#include <cstddef>
#include <optional>

#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

/// Returns the weight of an answer in the loss, from keys such as "loss", "train", "weight" and
/// "loss_scale" of its turn: 0 if any of them excludes it, else the fraction, else 1. Throws
/// data_error for other values, for fractions that differ, and for fractions below 1e-6.
float parse_loss_weight(const RecordJson& turn, size_t turn_number);

/// Returns a number from 0 to 1, or the text of one, as tables write decimals. Returns nothing for
/// other values.
std::optional<double> parse_fraction(const RecordJson& value);

}  // namespace vlmtrain::io
