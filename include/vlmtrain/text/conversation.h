#pragma once

#include "vlmtrain/io/conversation.h"

namespace vlmtrain::text {

using io::kImagePlaceholder;
using io::kVideoPlaceholder;
using io::Role;
using io::Turn;

}  // namespace vlmtrain::text
