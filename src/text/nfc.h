#pragma once

#include "text/aligned_text.h"

namespace vlmtrain::text {

/// Unicode normalisation form C. Characters that compose or reorder with each other all keep the offset of the first.
AlignedText to_nfc(const AlignedText& text);

}  // namespace vlmtrain::text
