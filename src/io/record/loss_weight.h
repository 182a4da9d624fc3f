#pragma once

#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

/// Returns the weight of an answer in the loss, from keys such as "loss", "train", "weight" and
/// "loss_scale" of its turn: 0 if any of them excludes it, else the fraction, else 1. Throws
/// data_error for other values, and for fractions that differ.
float parse_loss_weight(const RecordJson& turn, size_t turn_number);

}  // namespace vlmtrain::io
