#pragma once

#include "vlmtrain/io/conversation.h"

namespace vlmtrain::text {

using io::kImageMark;
using io::kVideoMark;
using io::Role;
using io::Turn;

}  // namespace vlmtrain::text
