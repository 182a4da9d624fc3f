#include "curl/digest.h"

#include <openssl/evp.h>

#include <array>
#include <stdexcept>
#include <string>

namespace vlmtrain::hub {

namespace {

class OpensslHash : public Hash {
 public:
  explicit OpensslHash(const EVP_MD* function) {
    if (!context_ || EVP_DigestInit_ex(context_.get(), function, nullptr) != 1)
      throw std::runtime_error("OpenSSL does not provide the hash function");
  }

  void add(std::string_view bytes) override {
    if (EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) != 1)
      throw std::runtime_error("OpenSSL cannot compute a hash");
  }

  std::string to_hex() override {
    std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
    unsigned size = 0;
    if (EVP_DigestFinal_ex(context_.get(), bytes.data(), &size) != 1)
      throw std::runtime_error("OpenSSL cannot compute a hash");
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string text;
    for (unsigned i = 0; i < size; ++i) {
      text += kDigits[bytes[i] >> 4U];
      text += kDigits[bytes[i] & 15U];
    }
    return text;
  }

 private:
  struct Deleter {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Deleter> context_{EVP_MD_CTX_new()};
};

}  // namespace

std::unique_ptr<Hash> make_openssl_hash(HashFunction function) {
  return std::make_unique<OpensslHash>(function == HashFunction::kSha1 ? EVP_sha1() : EVP_sha256());
}

}  // namespace vlmtrain::hub
