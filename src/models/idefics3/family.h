#pragma once

#include "models/registry.h"

namespace vlmtrain::models::idefics3 {

Family family();

/// The same model under its later name; since SmolVLM2 its processor takes videos.
Family smolvlm_family();

}  // namespace vlmtrain::models::idefics3
