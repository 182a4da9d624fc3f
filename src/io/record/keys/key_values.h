#pragma once

#include "io/record/keys/key_refusals.h"
#include "io/record/keys/key_rules.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

/// Returns true if a key needs no notice or error: it is read or harmless, or its value means the
/// same as an absent key.
bool is_acceptable_value(KeyRule rule, const RecordJson& value);

/// Returns the form of a value that may be media, except for kNumbered.
MediaForm find_media_form(const RecordJson& value);

}  // namespace vlmtrain::io
