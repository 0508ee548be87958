/// The token of a job whose processes are all on one host, where nobody has given one.
/// Thread rule: any thread; any number of processes at once.
#pragma once

#include <filesystem>
#include <string_view>

#include "tutti/net/token.h"

namespace tutti {

/// "/tmp/tutti-tokens-1000", of this user. No variable says another place: processes of a job,
/// which differ in those, come to the same.
std::filesystem::path folder_of_host_tokens();

/// The token of `job` among the processes of this user on this host: whoever asks first draws it,
/// into a file of `folder`, which stays for the next job of that name. One line of the log (info)
/// names the file. Believed are a folder (0700) and a file in it (0600) that belong to this user
/// and that nobody else can use, nothing else: UsageError says what is there instead, and the cure.
Token token_of_host(std::string_view job,
                    const std::filesystem::path& folder = folder_of_host_tokens());

}  // namespace tutti
