#include "tutti/base/sha256.h"

#include <openssl/evp.h>

#include "tutti/base/detail/check.h"

namespace tutti {

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();

  Context() { TUTTI_CHECK(evp != nullptr, "no memory for a digest"); }
  ~Context() { EVP_MD_CTX_free(evp); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  const int ok = EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr);
  if (ok != 1) throw Error("sha256: this OpenSSL offers no SHA-256 (is a FIPS provider missing?)");
}

Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(const void* data, size_t num_bytes) {
  if (num_bytes == 0) return;
  const int ok = EVP_DigestUpdate(context_->evp, data, num_bytes);
  TUTTI_CHECK(ok == 1, "EVP_DigestUpdate of {} bytes", num_bytes);
}

std::string Sha256::hex() const {
  // Finishing ends a context, so a copy is finished.
  Context copy;
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  const bool ok = EVP_MD_CTX_copy_ex(copy.evp, context_->evp) == 1 &&
                  EVP_DigestFinal_ex(copy.evp, digest, &length) == 1;
  TUTTI_CHECK(ok && length == 32, "digest of {} bytes", length);
  std::string text;
  for (unsigned int i = 0; i < length; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

}  // namespace tutti
