#pragma once

#include "vlmtrain/io/resources.h"

namespace vlmtrain::models {

/// The files of configs/models, `PRESET/FILE`, compiled into the binary.
const io::Resources& resources();

}  // namespace vlmtrain::models
