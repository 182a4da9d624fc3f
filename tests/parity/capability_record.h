#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "models/family.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::parity {

/// Returns the name (models::name_of) of the family of a checkpoint.
inline std::string get_family_name(const std::filesystem::path& checkpoint) {
  return models::get_family_name(models::find_family(io::read_json(checkpoint / "config.json"), checkpoint));
}

/// Records in GoogleTest's report that the running test, if it passes, proves `capability` for the
/// family of this checkpoint. Capabilities are columns of the table that scripts/families_table.py
/// makes of the report.
inline void record_capability(const std::filesystem::path& checkpoint, const std::string& capability) {
  testing::Test::RecordProperty("family", get_family_name(checkpoint));
  testing::Test::RecordProperty("shows", capability);
}

}  // namespace vlmtrain::parity
