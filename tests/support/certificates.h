/// Certificates made on the spot: an authority, and what it signs.
#pragma once

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>

#include "tutti/net/tls.h"

namespace tutti::test {

/// An authority with a key of its own; signs certificates into files.
class Authority {
 public:
  explicit Authority(const std::string& name) : key_(make_key()) {
    certificate_ = sign(name, key_.get(), nullptr, key_.get());
  }

  /// Writes ca.pem, cert.pem and key.pem into `folder`, which is made.
  TlsFiles issue(const std::filesystem::path& folder, const std::string& name) const {
    std::filesystem::create_directories(folder);
    const TlsFiles files{folder / "ca.pem", folder / "cert.pem", folder / "key.pem"};
    const Key key = make_key();
    const Certificate certificate = sign(name, key.get(), certificate_.get(), key_.get());
    write(files.authority, [&](FILE* to) { return PEM_write_X509(to, certificate_.get()); });
    write(files.certificate, [&](FILE* to) { return PEM_write_X509(to, certificate.get()); });
    write(files.key, [&](FILE* to) {
      return PEM_write_PrivateKey(to, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
    std::filesystem::permissions(files.key, std::filesystem::perms(0600));
    return files;
  }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  static Key make_key() { return Key(EVP_EC_gen("P-256")); }

  static Certificate sign(const std::string& name, EVP_PKEY* key, X509* issuer, EVP_PKEY* signer) {
    Certificate made(X509_new());
    X509_set_version(made.get(), 2);
    static int serial = 1;
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), serial++);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
    X509_set_pubkey(made.get(), key);
    X509_NAME* subject = X509_get_subject_name(made.get());
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(made.get(), issuer == nullptr ? subject : X509_get_subject_name(issuer));
    if (issuer == nullptr) add_authority_mark(made.get());
    if (X509_sign(made.get(), signer, EVP_sha256()) == 0) {
      throw std::runtime_error("X509_sign");
    }
    return made;
  }

  /// Without it nobody accepts what the certificate signs.
  static void add_authority_mark(X509* certificate) {
    X509_EXTENSION* mark =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, "critical,CA:TRUE");
    X509_add_ext(certificate, mark, -1);
    X509_EXTENSION_free(mark);
  }

  template <class Put>
  static void write(const std::filesystem::path& path, const Put& put) {
    FILE* file = std::fopen(path.c_str(), "w");
    const bool written = file != nullptr && put(file) == 1;
    if (file != nullptr) std::fclose(file);
    if (!written) throw std::runtime_error("cannot write " + path.string());
  }

  Key key_;
  Certificate certificate_;
};

}  // namespace tutti::test
