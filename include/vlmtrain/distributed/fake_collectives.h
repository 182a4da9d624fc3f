#pragma once

#include <cstdint>
#include <memory>

#include "vlmtrain/distributed/collectives.h"

namespace vlmtrain::distributed {

/// Creates the collectives of one rank without other ranks, for dry runs on any device. Every other
/// rank is assumed to have this rank's values, and sums stay as they are. `group` is the number of
/// consecutive ranks over which tensors are sharded; 0: all ranks.
std::unique_ptr<Collectives> make_fake_collectives(int64_t world_size, int64_t rank = 0, int64_t group = 0);

}  // namespace vlmtrain::distributed
