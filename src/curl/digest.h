#pragma once

#include <memory>

#include "vlmtrain/hub/http.h"

namespace vlmtrain::hub {

/// Returns a hash computed by OpenSSL. Throws std::runtime_error if OpenSSL's configuration forbids
/// the function.
std::unique_ptr<Hash> make_openssl_hash(HashFunction function);

}  // namespace vlmtrain::hub
