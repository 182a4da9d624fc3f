#pragma once

#include <cstdint>
#include <memory>

#include "vlmtrain/distributed/collectives.h"

namespace vlmtrain::distributed {

/// A rank of so many of which the others are not there, for rehearsals: what it adds up stays as it is, and all others
/// say what it says. On any device. `group`: consecutive ranks that share parts; 0: all do.
std::unique_ptr<Collectives> make_fake_collectives(int64_t world_size, int64_t rank = 0, int64_t group = 0);

}  // namespace vlmtrain::distributed
