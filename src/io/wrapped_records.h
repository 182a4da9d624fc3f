#pragma once

#include <string>
#include <string_view>

namespace vlmtrain::io {

/// Returns a clause about a JSON object that is no record but holds records or names their files: a list of records
/// under a key, records by name, or a registry of data sets of another trainer. It names the key and what to do.
/// Empty where the object may be a record.
std::string describe_wrapped_records(std::string_view text);

}  // namespace vlmtrain::io
