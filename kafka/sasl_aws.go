package kafka

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/twmb/franz-go/pkg/sasl"
	mskiam "github.com/twmb/franz-go/pkg/sasl/aws"
)

// AWS says which AWS identity AWS_MSK_IAM uses. With nothing set it is the one that the AWS SDK finds:
// environment, shared files, web identity (IRSA), pod identity, container or instance role.
// Credentials that expire are renewed.
type AWS struct {
	// Region is that of the cluster. Needed for RoleARN, and where brokers have names of their own,
	// since otherwise their names tell; it then becomes AWS_REGION of this process, where the signer
	// looks for it.
	Region string `koanf:"region"`
	// Profile is the one of the shared configuration files.
	Profile string `koanf:"profile"`
	// RoleARN is a role to assume with those credentials, SessionName what the session is called in
	// AWS's logs, ExternalID what the role's owner may ask for.
	RoleARN     string `koanf:"role-arn"`
	SessionName string `koanf:"session-name"`
	ExternalID  string `koanf:"external-id"`
}

const (
	// awsTimeout bounds a request for credentials: connections wait for it.
	awsTimeout = 10 * time.Second
	// Credentials are renewed this long before they expire, so that none expires under way.
	awsExpiryWindow = 2 * time.Minute
)

func (a *AWS) validate(faults *faultList) {
	if a.RoleARN == "" {
		if a.SessionName != "" {
			faults.add("sasl.aws.session-name", "set, but sasl.aws.role-arn is not")
		}
		if a.ExternalID != "" {
			faults.add("sasl.aws.external-id", "set, but sasl.aws.role-arn is not")
		}
		return
	}
	if !strings.HasPrefix(a.RoleARN, "arn:") || !strings.Contains(a.RoleARN, ":role/") {
		faults.add("sasl.aws.role-arn", "%q is not the ARN of a role, arn:aws:iam::<account>:role/<name>", a.RoleARN)
	}
}

// mechanism signs with the credentials of the moment.
func (a *AWS) mechanism(report *credentialReport) (sasl.Mechanism, error) {
	credentials, err := a.credentials()
	if err != nil {
		return nil, fmt.Errorf("sasl.aws: %w", err)
	}
	if a.Region != "" {
		if err := os.Setenv("AWS_REGION", a.Region); err != nil {
			return nil, fmt.Errorf("sasl.aws.region: %w", err)
		}
	}
	return mskiam.ManagedStreamingIAM(func(ctx context.Context) (mskiam.Auth, error) {
		ctx, cancel := context.WithTimeout(ctx, awsTimeout)
		defer cancel()
		c, err := credentials.Retrieve(ctx)
		return mskiam.Auth{
			AccessKey: c.AccessKeyID, SecretKey: c.SecretAccessKey, SessionToken: c.SessionToken,
			UserAgent: "bide/" + softwareVersion(),
		}, report.result(err)
	}), nil
}

// credentials returns the chain of providers, cached and renewed. It reads the shared configuration;
// networks are asked only when credentials are needed.
func (a *AWS) credentials() (awssdk.CredentialsProvider, error) {
	window := func(o *awssdk.CredentialsCacheOptions) { o.ExpiryWindow = awsExpiryWindow }
	opts := []func(*awsconfig.LoadOptions) error{awsconfig.WithCredentialsCacheOptions(window)}
	if a.Region != "" {
		opts = append(opts, awsconfig.WithRegion(a.Region))
	}
	if a.Profile != "" {
		opts = append(opts, awsconfig.WithSharedConfigProfile(a.Profile))
	}
	ctx, cancel := context.WithTimeout(context.Background(), awsTimeout)
	defer cancel()
	conf, err := awsconfig.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return nil, err
	}
	if a.RoleARN == "" {
		return conf.Credentials, nil
	}
	if conf.Region == "" {
		return nil, errors.New("role-arn needs region, or AWS_REGION, to ask for the role's credentials")
	}
	role := stscreds.NewAssumeRoleProvider(sts.NewFromConfig(conf), a.RoleARN, func(o *stscreds.AssumeRoleOptions) {
		o.RoleSessionName = a.SessionName
		if a.ExternalID != "" {
			o.ExternalID = &a.ExternalID
		}
	})
	return awssdk.NewCredentialsCache(role, window), nil
}
