package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// groupRights are what Bide needs of its group; Describe comes with Read.
var groupRights = []right{
	{kmsg.ACLOperationRead, CheckError, "to be a member and to commit"},
	{kmsg.ACLOperationDescribe, CheckError, "to find the coordinator and to read what is committed"},
}

// groupView is a group of either protocol.
type groupView struct {
	state, kind string // kind is the protocol type; consumer where it is empty
	protocol    GroupProtocol
	assignor    string
	rights      operations
	members     []memberView
}

type memberView struct {
	instance, client, host string
	topics                 []string // nil where they are not known
}

// groupState looks at Bide's rights on the group, and at who is in it.
func (p *preflight) groupState(ctx context.Context) {
	name := p.o.Group
	if p.o.GroupProtocol == ConsumerProtocol && !p.knows(kmsg.ConsumerGroupHeartbeat) {
		p.add(CheckError, "group", name, "group-protocol is consumer, which this cluster does not know (Kafka 4.0 does); set classic")
	}
	g, err := p.describeGroup(ctx)
	switch {
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		p.add(CheckError, "rights", name, "missing Read, Describe on the group: to be a member, to commit and to read what is committed", p.commands.grant("--group "+name, "Read"))
		return
	case err != nil:
		p.add(CheckError, "group", name, fmt.Sprintf("the group cannot be described: %v", err))
		return
	}
	p.readable = true
	if !g.rights.known() {
		p.add(CheckNote, "rights", name, "this broker does not tell which rights Bide has on the group")
	} else if p.lacks(name, "--group "+name, lacking(g.rights, groupRights)) {
		p.add(CheckOK, "rights", name, "group: Read, Describe allowed")
	}
	p.judgeGroup(g)
}

func (p *preflight) judgeGroup(g groupView) {
	name, before := p.o.Group, len(p.checks)
	if g.kind != "" && g.kind != "consumer" {
		p.add(CheckError, "group", name, fmt.Sprintf("it is no group of consumers but of type %q: name another group", g.kind))
		return
	}
	want := p.o.GroupProtocol
	if want == "" {
		want = ClassicProtocol
	}
	if len(g.members) > 0 && g.protocol != want {
		p.add(CheckWarning, "group", name, fmt.Sprintf("its members use the %s protocol, and group-protocol is %s: have all of them use one", g.protocol, want))
	}
	if assignor := kgo.CooperativeStickyBalancer().ProtocolName(); g.protocol == ClassicProtocol && g.assignor != "" && g.assignor != assignor {
		p.add(CheckError, "group", name, fmt.Sprintf("its members assign partitions by %q, Bide by %s: they are not Bide's, name another group", g.assignor, assignor))
	}
	var ingress []string
	for _, in := range p.o.Topics.Ingress {
		ingress = append(ingress, in.Name)
	}
	slices.Sort(ingress)
	for _, m := range g.members {
		slices.Sort(m.topics)
		who := fmt.Sprintf("member %s (client %s, host %s)", m.instance, m.client, m.host)
		if m.topics != nil && !slices.Equal(m.topics, ingress) {
			p.add(CheckWarning, "group", name, fmt.Sprintf("%s reads %s, and ingress is %s: give all members the same ingress, or another group",
				who, strings.Join(m.topics, ", "), strings.Join(ingress, ", ")))
		}
		if m.instance != "" && m.instance == p.o.Instance {
			p.add(CheckNote, "group", name, fmt.Sprintf("%s has this instance id. Fine if it is the process of this data directory, running or just stopped; another one would end when this one starts: give it an id of its own", who))
		}
	}
	if len(p.checks) == before {
		state := g.state
		if state == "Dead" {
			state = "new"
		}
		p.add(CheckOK, "group", name, fmt.Sprintf("%s, %d members", strings.ToLower(state), len(g.members)))
	}
}

// describeGroup asks for the group by the classic protocol, and by KIP-848 where that has none.
func (p *preflight) describeGroup(ctx context.Context) (groupView, error) {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups, req.IncludeAuthorizedOperations = []string{p.o.Group}, true
	var d kmsg.DescribeGroupsResponseGroup
	if err := patiently(ctx, func() error {
		resp, err := req.RequestWith(ctx, p.cl)
		if err != nil {
			return err
		}
		if len(resp.Groups) != 1 {
			return errors.New("missing in the answer")
		}
		d = resp.Groups[0]
		return kerr.ErrorForCode(d.ErrorCode)
	}); err != nil {
		return groupView{}, err
	}
	g := groupView{state: d.State, kind: d.ProtocolType, protocol: ClassicProtocol, assignor: d.Protocol, rights: operations(d.AuthorizedOperations)}
	for _, m := range d.Members {
		v := memberView{client: m.ClientID, host: m.ClientHost}
		if m.InstanceID != nil {
			v.instance = *m.InstanceID
		}
		var meta kmsg.ConsumerMemberMetadata
		if d.ProtocolType == "consumer" && meta.ReadFrom(m.ProtocolMetadata) == nil && len(meta.Topics) > 0 {
			v.topics = meta.Topics
		}
		g.members = append(g.members, v)
	}
	if d.State == "Dead" && p.knows(kmsg.ConsumerGroupDescribe) {
		if newer, ok := p.describeConsumerGroup(ctx); ok {
			newer.rights = g.rights
			return newer, nil
		}
	}
	return g, nil
}

func (p *preflight) describeConsumerGroup(ctx context.Context) (groupView, bool) {
	req := kmsg.NewPtrConsumerGroupDescribeRequest()
	req.Groups = []string{p.o.Group}
	resp, err := req.RequestWith(ctx, p.cl)
	if err != nil || len(resp.Groups) != 1 || resp.Groups[0].ErrorCode != 0 {
		return groupView{}, false // no such group, or topics of members that Bide may not see
	}
	d := resp.Groups[0]
	g := groupView{state: d.State, protocol: ConsumerProtocol}
	for _, m := range d.Members {
		v := memberView{client: m.ClientID, host: m.ClientHost, topics: m.SubscribedTopics}
		if m.InstanceID != nil {
			v.instance = *m.InstanceID
		}
		g.members = append(g.members, v)
	}
	return g, true
}
