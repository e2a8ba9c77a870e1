package kafka

import (
	"fmt"
	"strings"
)

// Transactional ids of an instance are
//
//	bide-<group>-<instance>-<index>   records and commits, index 0 … idLimit-1
//	bide-<group>-<instance>-c         commits alone
//
// with every '-' of the instance id written as '~', which no instance id has. So the last '-' of a
// prefix ends the group, and two groups of which one's name begins like the other's never share an
// id: they would fence each other for ever. One ACL for the prefix "bide-<group>-" covers all of them.
const (
	idLimit      = 8
	commitSuffix = "c"
)

// txnPrefix returns what the transactional ids of an instance begin with.
func txnPrefix(group, instance string) string {
	return groupPrefix(group) + strings.ReplaceAll(instance, "-", "~")
}

func groupPrefix(group string) string { return "bide-" + group + "-" }

// ownsPrefix reports whether prefix is that of some instance of group. A prefix found in a commit may
// be forged, and fencing it ends whatever runs under it.
func ownsPrefix(group, prefix string) bool {
	instance, ok := strings.CutPrefix(prefix, groupPrefix(group))
	return ok && instance != "" && !strings.Contains(instance, "-")
}

// txnIDs returns all transactional ids of a prefix.
func txnIDs(prefix string) []string {
	ids := make([]string, 0, idLimit+1)
	for i := range idLimit {
		ids = append(ids, txnID(prefix, i))
	}
	return append(ids, commitTxnID(prefix))
}

func txnID(prefix string, index int) string { return fmt.Sprintf("%s-%d", prefix, index) }

func commitTxnID(prefix string) string { return prefix + "-" + commitSuffix }
